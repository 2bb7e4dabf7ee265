// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The router on a GPU.  It gives the bits of ref, except with LogitSums::kTensorCores.
#pragma once

#include <memory>

#include "router/impl.h"

namespace moebius::router {

Support cuda_supports(const Model& model);
std::unique_ptr<Impl> make_cuda(const Model& model);

}  // namespace moebius::router
