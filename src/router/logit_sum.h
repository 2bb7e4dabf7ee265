// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The order in which every implementation adds the products of a logit.
#pragma once

#include <cstdint>

namespace moebius::router {

// A logit is a sum of H products in f32.  Each block of kDepthBlock consecutive h has two chains of
// fused multiply-adds that start at 0, one over the even h and one over the odd h.  Block by block,
// the sum of the two chains is added to a total that starts at 0; the bias is added last.  Before
// the bias, operands and results below the smallest normal number count as 0.  A result is below it
// if it is so when it is rounded to 24 bits as if smaller exponents existed.
// Why this order: AMX computes bf16 this way (TDPBF16PS), and vector units can do the same at full
// speed, with a lane per (token, expert) and without horizontal sums.
inline constexpr int64_t kDepthBlock = 32;

}  // namespace moebius::router
