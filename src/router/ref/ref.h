// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The scalar specification of the router.
#pragma once

#include <memory>

#include "router/impl.h"

namespace moebius::router {

// A logit is a sum over H products in f32: within each block of kDepthBlock consecutive h a chain
// of fused multiply-adds that starts at 0; the blocks' sums are added to 0 in order, then the bias.
// Why blocks: a lane per (token, expert) needs no horizontal sums, a block of the gate stays in
// cache, and the error grows with kDepthBlock + H / kDepthBlock instead of H.
inline constexpr int64_t kDepthBlock = 256;

Support ref_supports(const Model& model);
std::unique_ptr<Impl> make_ref(const Model& model);

}  // namespace moebius::router
