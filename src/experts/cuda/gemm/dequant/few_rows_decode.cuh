// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Decodes eight neighbouring codes of a column to four pairs of bf16, exactly and by few
// instructions.  Which codes form a pair depends on the format; rows of activations are brought
// into the same order.
#pragma once

#include <cuda_fp8.h>

#include "core/cuda/floats.cuh"
#include "core/cuda/mma.cuh"
#include "moebius/float_types.h"
#include "quant/row_kernels.h"

namespace moebius::cuda::few_rows {

using quant::Code;

__device__ __forceinline__ uint32_t difference(uint32_t a, uint32_t b) {
  return bits_of(__hsub2(as_pair<__nv_bfloat162>(a), as_pair<__nv_bfloat162>(b)));
}
__device__ __forceinline__ uint32_t product(uint32_t a, uint32_t b) {
  return bits_of(__hmul2(as_pair<__nv_bfloat162>(a), as_pair<__nv_bfloat162>(b)));
}
__device__ __forceinline__ uint32_t both_halves(float v) {
  return narrow_pair(BFloat16{}, v, v);
}

// The bits of 128 in a pair of bf16.  The mantissa has seven bits, so an integer in the low bits is
// added to 128.
inline constexpr uint32_t k128 = 0x43004300u;

// Two e2m1 codes as bf16 that are 2^-126 times the codes' values (0.5 becomes subnormal).  Why a
// product with the sum of two powers of two: it shifts sign and magnitude at once.
__device__ __forceinline__ uint32_t e2m1_low_pair(uint32_t word) {
  return (word & 0x000f000fu) * 0x1040u & 0x81c081c0u;
}
__device__ __forceinline__ uint32_t e2m1_high_pair(uint32_t word) {
  return (word & 0x00f000f0u) * 0x0104u & 0x81c081c0u;
}

__device__ __forceinline__ uint32_t e4m3_pair(uint32_t codes) {
  const __half2_raw halves =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes & 0xffffu), __NV_E4M3);
  const float2 v = __half22float2(__half2(halves));
  return narrow_pair(BFloat16{}, v.x, v.y);
}

// Folded scales are 2^kFoldedExponent times as large.  That is what e2m1 codes lack, less what
// keeps the largest e4m3 scale, and 2^17, within bf16.
inline constexpr int kFoldedExponent = 110;
inline constexpr float kFoldedFactor = 0x1p110f;
inline constexpr float kColumnFactor = 0x1p16f;  // what sums of codes times folded scales lack
inline constexpr int kBias = 127;
inline constexpr uint32_t kExponents = 0x00800080u;  // 1 in both exponents of a pair

// Pairs of folded scales, from one e8m0 code or from two e4m3.  e8m0 scales above 2^17 are not
// folded; elements are multiplied by them and by 2^kFoldedExponent, one after the other.
inline constexpr uint32_t kLargestE8m0 = 2 * kBias - kFoldedExponent;
__device__ __forceinline__ uint32_t folded_e8m0(uint32_t code) {
  return code * kExponents + kFoldedExponent * kExponents;
}
__device__ __forceinline__ uint32_t unfolded_e8m0(uint32_t code) {
  return both_halves(e8m0_to_float(static_cast<uint8_t>(code)));
}
__device__ __forceinline__ uint32_t folded_e4m3(uint32_t codes) {
  const __half2_raw halves =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  const float2 v = __half22float2(__half2(halves));
  return narrow_pair(BFloat16{}, v.x * kFoldedFactor, v.y * kFoldedFactor);
}

// by: for kU4 and kI8 the zero point, which is subtracted (for kU4 together with 128); where
// kFolds, the scale.  kIsSpecial: the zero point of kI8 is 0, or the scale is large and not folded.
template <Code kCode, bool kFolds, bool kIsSpecial = false>
__device__ __forceinline__ void decode_pairs(const uint32_t* words,
                                             uint32_t by,
                                             uint32_t (&pairs)[4]) {
  if constexpr (kCode == Code::kU4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = difference(ptx::and_or(words[0] >> 4 * i, 0x000f000fu, k128), by);
    }
  } else if constexpr (kCode == Code::kI8) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = words[i / 2] >> 8 * (i % 2);
      // This is 128 + the low bits, less 128 or, for negative numbers, 256.
      const uint32_t integer =
          difference(ptx::and_or(word, 0x007f007fu, k128), ptx::and_or(word, 0x00800080u, k128));
      pairs[i] = kIsSpecial ? integer : difference(integer, by);
    }
  } else if constexpr (kCode == Code::kE4M3) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = e4m3_pair(words[i / 2] >> 16 * (i % 2));
      if constexpr (kFolds) {
        pairs[i] = product(pairs[i], by);
      }
    }
  } else {
    static_assert(kCode == Code::kE2M1 && kFolds);
    const uint32_t high = words[0] >> 8;
    pairs[0] = e2m1_low_pair(words[0]);
    pairs[1] = e2m1_high_pair(words[0]);
    pairs[2] = e2m1_low_pair(high);
    pairs[3] = e2m1_high_pair(high);
#pragma unroll
    for (uint32_t& pair : pairs) {
      if constexpr (kIsSpecial) {
        pair = product(pair, (kFoldedExponent + kBias) * kExponents);
      }
      pair = product(pair, by);
    }
  }
}

// Brings eight neighbouring elements of a row into the pairs of decode_pairs().
template <Code kCode>
__device__ __forceinline__ uint4 in_order_of(const uint4& row) {
  constexpr uint32_t kLow = 0x5410;
  constexpr uint32_t kHigh = 0x7632;
  if constexpr (kCode == Code::kI8) {
    return make_uint4(__byte_perm(row.x, row.y, kLow), __byte_perm(row.x, row.y, kHigh),
                      __byte_perm(row.z, row.w, kLow), __byte_perm(row.z, row.w, kHigh));
  } else if constexpr (kCode == Code::kE4M3) {
    return row;
  } else {
    return make_uint4(__byte_perm(row.x, row.z, kLow), __byte_perm(row.x, row.z, kHigh),
                      __byte_perm(row.y, row.w, kLow), __byte_perm(row.y, row.w, kHigh));
  }
}

}  // namespace moebius::cuda::few_rows
