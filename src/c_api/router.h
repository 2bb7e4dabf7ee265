// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What is read from the router structs of the C API.
#pragma once

#include "moebius/router.h"
#include "moebius/stream.h"
#include "moebius_c.h"

namespace moebius::c_api {

RouterConfig read_router_config(const moebius_router_config* config, Device device);
// Null stands for no weights.
RouterWeights read_router_weights(const moebius_router_weights* weights, const Stream& stream);

}  // namespace moebius::c_api
