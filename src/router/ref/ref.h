// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The scalar specification of the router.
#pragma once

#include <memory>

#include "router/impl.h"

namespace moebius::router {

// A logit is a sum over H products in f32.  Within each block of kDepthBlock consecutive h there
// are two chains of fused multiply-adds that start at 0, one over the even h and one over the odd;
// the sums of the two chains are added to 0 block by block, then the bias.  Before the bias,
// numbers below the smallest normal one count as 0, as operands and as results: results that are
// below it when rounded to 24 bits as if there were smaller exponents.  Why so: it is what AMX
// computes of bf16 (TDPBF16PS), and vector units can do the same at full speed with a lane per
// (token, expert) and no horizontal sums.
inline constexpr int64_t kDepthBlock = 32;

Support ref_supports(const Model& model);
std::unique_ptr<Impl> make_ref(const Model& model);

}  // namespace moebius::router
