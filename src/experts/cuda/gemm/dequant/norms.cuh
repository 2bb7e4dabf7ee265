// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Numbers become f16 by a power of two, their norm.  The largest of a row, or of the scales of a
// column, comes below 2^kNormalRow or 2^kNormalScale.  Then f16 holds each number in bf16 exactly
// that is not less than 2^-31 of a row's largest, or 2^-28 of a column's.
#pragma once

#include <cstdint>

namespace moebius::cuda {

inline constexpr uint32_t kNormalRow = 15;
inline constexpr uint32_t kNormalScale = 12;  // so that products with codes are below 2^16

// Returns a power of two such that |largest| times it is below 2^top; infinity counts as 2^128.
__device__ __forceinline__ float norm_of(float largest, uint32_t top) {
  constexpr uint32_t kMantissaBits = 23;
  constexpr uint32_t kTwiceBias = 254;
  const uint32_t exponent = __float_as_uint(largest) << 1 >> (kMantissaBits + 1);
  return __uint_as_float((top + kTwiceBias - 1 - max(exponent, top)) << kMantissaBits);
}
// REQUIRES: norm is what norm_of() returns.
__device__ __forceinline__ float reciprocal_of_norm(float norm) {
  return __uint_as_float(0x7f000000u - __float_as_uint(norm));
}

}  // namespace moebius::cuda
