// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The scalar specification of the router.
#pragma once

#include <memory>

#include "router/impl.h"

namespace moebius::router {

Support ref_supports(const Model& model);
std::unique_ptr<Impl> make_ref(const Model& model);

}  // namespace moebius::router
