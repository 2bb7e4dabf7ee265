// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Decodes eight neighbouring codes of a column to four pairs of bf16 or f16, exactly and by few
// instructions.  Which codes form a pair depends on the format; rows of activations are brought
// into the same order.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "core/cuda/floats.cuh"
#include "core/cuda/mma.cuh"
#include "experts/cuda/gemm/dequant/few_rows_stages.cuh"
#include "experts/cuda/gemm/dequant/packed_e2m1.cuh"
#include "experts/cuda/gemm/dequant/packed_e4m3.cuh"
#include "moebius/float_types.h"
#include "quant/row_kernels.h"

namespace moebius::cuda::few_rows {

__device__ __forceinline__ uint32_t difference(BFloat16, uint32_t a, uint32_t b) {
  return bits_of(__hsub2(as_pair<__nv_bfloat162>(a), as_pair<__nv_bfloat162>(b)));
}
__device__ __forceinline__ uint32_t difference(Float16, uint32_t a, uint32_t b) {
  return bits_of(__hsub2(as_pair<__half2>(a), as_pair<__half2>(b)));
}
__device__ __forceinline__ uint32_t product(BFloat16, uint32_t a, uint32_t b) {
  return bits_of(__hmul2(as_pair<__nv_bfloat162>(a), as_pair<__nv_bfloat162>(b)));
}
__device__ __forceinline__ uint32_t product(Float16, uint32_t a, uint32_t b) {
  return bits_of(__hmul2(as_pair<__half2>(a), as_pair<__half2>(b)));
}
template <typename T>
__device__ __forceinline__ uint32_t both_halves(T, float v) {
  return narrow_pair(T{}, v, v);
}

// Returns the lower or the higher half of a pair, twice.  Why not by __byte_perm(): products take
// such a half without an instruction for it.
__device__ __forceinline__ uint32_t one_half(uint32_t pair, bool is_high) {
  const auto halves = as_pair<__nv_bfloat162>(pair);
  return bits_of(is_high ? __high2bfloat162(halves) : __low2bfloat162(halves));
}

// The bits of 128 in a pair of bf16, and of 1024 and 64 in pairs of f16.  The mantissa has seven
// bits, or ten, so an integer in the low bits is added to 128, or to 1024, and one in bits 4 to 7
// to 64.
inline constexpr uint32_t k128 = 0x43004300u;
inline constexpr uint32_t k1024 = 0x64006400u;
inline constexpr uint32_t k64 = 0x54005400u;

// Eight int4 codes less their zero points.  `by` is 1024 and the zero point.
__device__ __forceinline__ void int4_pairs(uint32_t word, uint32_t by, uint32_t (&pairs)[4]) {
  const uint32_t by_of_high = difference(Float16{}, by, both_halves(Float16{}, 1024.0f - 64.0f));
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t shifted = word >> 4 * i;
    pairs[i] = difference(Float16{}, ptx::and_or(shifted, 0x000f000fu, k1024), by);
    pairs[i + 1] = difference(Float16{}, ptx::and_or(shifted, 0x00f000f0u, k64), by_of_high);
  }
}

// Eight int4 codes from which nothing is subtracted.  Those in even places are times
// kWholeInt4Factor and others 16 times that, since bits 0 to 3 and 4 to 7 alone are a subnormal
// f16.
__device__ __forceinline__ void whole_int4_pairs(uint32_t word, uint32_t (&pairs)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t shifted = word >> 4 * i;
    pairs[i] = shifted & 0x000f000fu;
    pairs[i + 1] = shifted & 0x00f000f0u;
  }
}

// Two int8 codes, less `by`.  In bf16 `by` is the zero point, and is skipped where that is 0.
template <bool kSkips>
__device__ __forceinline__ uint32_t int8_pair(BFloat16, uint32_t word, uint32_t by) {
  // This is 128 + the low bits, less 128 or, for negative numbers, 256.
  const uint32_t integer = difference(BFloat16{}, ptx::and_or(word, 0x007f007fu, k128),
                                      ptx::and_or(word, 0x00800080u, k128));
  return kSkips ? integer : difference(BFloat16{}, integer, by);
}
// In f16 it is 1024 + 128 + the zero point: with the highest bit flipped, a code is 128 larger and
// not negative.
inline constexpr float kFlippedInt8 = 1024.0f + 128.0f;
template <bool kSkips>
__device__ __forceinline__ uint32_t int8_pair(Float16, uint32_t word, uint32_t by) {
  static_assert(!kSkips);
  return difference(Float16{}, ptx::and_xor(word, 0x00ff00ffu, k1024 | 0x00800080u), by);
}

// Returns what decode_pairs() subtracts from codes with a zero point.
template <Code kCode>
__device__ __forceinline__ uint32_t subtrahend(BFloat16, float zero_point) {
  return both_halves(BFloat16{}, zero_point);
}
template <Code kCode>
__device__ __forceinline__ uint32_t subtrahend(Float16, float zero_point) {
  return both_halves(Float16{}, (kCode == Code::kU4 ? 1024.0f : kFlippedInt8) + zero_point);
}

// Two e2m1 codes as bf16 that are 2^-126 times the codes' values (0.5 becomes subnormal).  Why a
// product with the sum of two powers of two: it shifts sign and magnitude at once.
__device__ __forceinline__ uint32_t e2m1_low_pair(BFloat16, uint32_t word) {
  return (word & 0x000f000fu) * 0x1040u & 0x81c081c0u;
}
__device__ __forceinline__ uint32_t e2m1_high_pair(BFloat16, uint32_t word) {
  return (word & 0x00f000f0u) * 0x0104u & 0x81c081c0u;
}
// The same as f16, 2^-14 times the values (0.5 becomes subnormal, and -0 becomes 0).  A code v has
// its magnitude in three bits.  v 2^9 shifts these to where they belong, and 7 2^12 + v 2^9 - v
// 2^12 has the sign in bit 15, too.  What a half borrows from the higher one comes from its bit 8.
inline constexpr uint32_t kE2m1Signs = 0x71007000u;
__device__ __forceinline__ uint32_t e2m1_low_pair(Float16, uint32_t word) {
  return (kE2m1Signs - (word & 0x000f000fu) * 0x0e00u) & 0x8e008e00u;
}
__device__ __forceinline__ uint32_t e2m1_high_pair(Float16, uint32_t word) {
  return (kE2m1Signs - (word & 0x00f000f0u) * 0x00e0u) & 0x8e008e00u;
}

__device__ __forceinline__ __half2 e4m3_halves(uint32_t codes) {
  return __half2(
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes & 0xffffu), __NV_E4M3));
}
__device__ __forceinline__ uint32_t e4m3_pair(BFloat16, uint32_t codes) {
  const float2 v = __half22float2(e4m3_halves(codes));
  return narrow_pair(BFloat16{}, v.x, v.y);
}
__device__ __forceinline__ uint32_t e4m3_pair(Float16, uint32_t codes) {
  return bits_of(e4m3_halves(codes));
}

using packed_e4m3::kFoldedExponent;
using packed_e4m3::kFoldedFactor;
inline constexpr int kBias = 127;
inline constexpr uint32_t kExponents = 0x00800080u;  // 1 in both exponents of a pair

// Pairs of folded scales, from one e8m0 code or from two e4m3.  e8m0 scales above 2^17 are not
// folded; elements are multiplied by them and by 2^kFoldedExponent, one after the other.
inline constexpr uint32_t kLargestE8m0 = 2 * kBias - kFoldedExponent;
__device__ __forceinline__ uint32_t folded_e8m0(uint32_t code) {
  return code * kExponents + kFoldedExponent * kExponents;
}
__device__ __forceinline__ uint32_t unfolded_e8m0(uint32_t code) {
  return both_halves(BFloat16{}, e8m0_to_float(static_cast<uint8_t>(code)));
}
__device__ __forceinline__ uint32_t folded_e4m3(BFloat16, uint32_t codes) {
  const float2 v = __half22float2(e4m3_halves(codes));
  return narrow_pair(BFloat16{}, v.x * kFoldedFactor, v.y * kFoldedFactor);
}
// f16 has room for the scale as it is: products with e2m1 codes are 0 or between 2^-10 and
// 2688, and elements are 2^-14 of these, so that the least is the least subnormal.
__device__ __forceinline__ uint32_t folded_e4m3(Float16, uint32_t codes) {
  return e4m3_pair(Float16{}, codes);
}

// Elements of f16 hold int4 codes times their scales.  So that they have f16's exponents, the
// scales of a column are multiplied by a power of two first, its norm (scale_norms.h).  Products
// with scales in bf16 are exact, since these have eight bits and codes three.
__device__ __forceinline__ uint32_t folded_int4(float scale, float norm) {
  return both_halves(Float16{}, scale * norm);
}

// Says where along k the scales of sums may change.
enum class Changes : uint8_t { kNever, kBetweenSteps, kWithinSteps };

// Says which codes and scales become elements of which type, and how.  decode_pairs() makes f16 of
// int4, since bf16 would take two more shifts for eight codes; rows in bf16 become f16, too.
// Scale: uint8_t is e8m0, uint16_t is two neighbours of e4m3.  T: BFloat16 or Float16.
// kPacked: codes and scales are packed, see WeightArgs, for elements of bf16.
// kWhole: elements of int4 keep their zero points, see Args::sums.
// Int4 whose sums are never scaled has no zero points but 8, and a scale for whole steps.
template <Code kOfCode,
          typename OfScale,
          typename T,
          Changes kOfSums = Changes::kNever,
          bool kPacked = false,
          bool kWhole = false>
struct Decoding {
  static_assert(!kWhole || (kOfCode == Code::kU4 && kOfSums != Changes::kNever));
  static_assert(!kPacked || (kOfCode == Code::kE2M1 && std::is_same_v<T, BFloat16>));
  static constexpr Code kCode = kOfCode;
  using Scale = OfScale;
  using Element = T;
  static constexpr bool kIsPacked = kPacked;
  static constexpr bool kIsWholeInt4 = kWhole;
  static constexpr bool kIsBF16 = std::is_same_v<T, BFloat16>;
  static constexpr bool kIsE8m0 = std::is_same_v<Scale, uint8_t>;
  static constexpr bool kIsPair = std::is_same_v<Scale, uint16_t>;
  static constexpr bool kIsFoldedInt4 = kOfCode == Code::kU4 && kOfSums == Changes::kNever;
  // Whether scales go into the elements.  Those of e8m0 have more exponents than f16.
  static constexpr bool kFolds = kIsPair || (kIsE8m0 && kIsBF16) || kIsFoldedInt4;
  static constexpr bool kByChunks = is_by_chunks(kCode, kFolds);
  static constexpr Changes kChanges = kOfSums;
  static_assert(!kFolds || kChanges == Changes::kNever);
  // Says whether tiles of so many rows have kernels.  Sums of large ones leave no registers for
  // totals of sums whose scales change within steps.  With eight bits, small ones with either
  // change are one kernel, and small ones of int4 scale their sums, which takes fewer instructions
  // than to scale elements.
  static constexpr bool has_tiles(int rows) {
    if (kWhole != has_row_sums(kCode, rows)) {
      return false;
    }
    return rows > kSmallFewRowsTile ? kChanges != Changes::kWithinSteps
           : kCode == Code::kU4     ? !kFolds
                                    : kChanges != Changes::kBetweenSteps;
  }
  static constexpr bool kHasZeros = (kCode == Code::kU4 && !kFolds) || kCode == Code::kI8;
  static constexpr bool kSkipsZeros = kCode == Code::kI8 && kIsBF16;  // those that are 0
  static constexpr bool kMayBeLarge = kCode == Code::kE2M1 && kIsE8m0 && kFolds;
  // Sums of elements are multiplied by this to be sums of products.
  static constexpr float kColumnFactor = kWhole                 ? 1.0f / kWholeInt4Factor
                                         : kIsBF16              ? (kFolds ? 0x1p16f : 1.0f)
                                         : kCode == Code::kE2M1 ? 0x1p14f
                                                                : 1.0f;
};

// Returns the bytes of a column's scales in a chunk, see few_rows_scales.cuh.  Short chunks of
// pairs would last half as many steps as others, but long ones would cost tiles of 256 rows a
// stage.
template <typename D>
constexpr int chunk_bytes(int tile_rows) {
  return D::kByChunks && D::kIsPair && tile_rows <= kSmallFewRowsTile ? 2 * kChunkBytes
                                                                      : kChunkBytes;
}

// Returns the folded scales of two bytes, if D::kIsPair.  `upper`: see packed_e4m3::folded_pair().
template <typename D>
__device__ __forceinline__ uint32_t folded_pair(uint32_t bytes, uint32_t upper) {
  if constexpr (D::kIsPacked) {
    return packed_e4m3::folded_pair(bytes, upper);
  } else {
    return folded_e4m3(typename D::Element{}, bytes);
  }
}

// by: for kHasZeros what subtrahend() gives; where kFolds, the scale.  kIsSpecial: the zero point
// is 0 and skipped, or the scale is large and not folded.
template <typename D, bool kIsSpecial>
__device__ __forceinline__ void decode_pairs(const uint32_t* words,
                                             uint32_t by,
                                             uint32_t (&pairs)[4]) {
  using T = typename D::Element;
  static_assert(D::kCode != Code::kU4 || !D::kIsBF16);
  if constexpr (D::kIsFoldedInt4) {
    int4_pairs(words[0], subtrahend<Code::kU4>(T{}, 8.0f), pairs);
#pragma unroll
    for (uint32_t& pair : pairs) {
      pair = product(T{}, pair, by);
    }
  } else if constexpr (D::kIsWholeInt4) {
    whole_int4_pairs(words[0], pairs);
  } else if constexpr (D::kCode == Code::kU4) {
    int4_pairs(words[0], by, pairs);
  } else if constexpr (D::kCode == Code::kI8) {
    constexpr bool kSkips = kIsSpecial && D::kSkipsZeros;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = int8_pair<kSkips>(T{}, words[i / 2] >> 8 * (i % 2), by);
    }
  } else if constexpr (D::kCode == Code::kE4M3) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = e4m3_pair(T{}, words[i / 2] >> 16 * (i % 2));
      if constexpr (D::kFolds) {
        pairs[i] = product(T{}, pairs[i], by);
      }
    }
  } else {
    static_assert(D::kCode == Code::kE2M1);
    if constexpr (D::kIsPacked) {
      packed_e2m1::to_pairs(words[0], pairs);
    } else {
      const uint32_t high = words[0] >> 8;
      pairs[0] = e2m1_low_pair(T{}, words[0]);
      pairs[1] = e2m1_high_pair(T{}, words[0]);
      pairs[2] = e2m1_low_pair(T{}, high);
      pairs[3] = e2m1_high_pair(T{}, high);
    }
    if constexpr (D::kFolds) {
#pragma unroll
      for (uint32_t& pair : pairs) {
        if constexpr (kIsSpecial && D::kIsBF16) {
          pair = product(T{}, pair, (kFoldedExponent + kBias) * kExponents);
        }
        pair = product(T{}, pair, by);
      }
    }
  }
}

// Brings eight neighbouring elements of a row into the pairs of decode_pairs().  `is_packed`: see
// WeightArgs.
template <Code kCode>
__device__ __forceinline__ uint4 in_order_of(const uint4& row, bool is_packed) {
  constexpr uint32_t kLow = 0x5410;
  constexpr uint32_t kHigh = 0x7632;
  if constexpr (kCode == Code::kI8) {
    return make_uint4(__byte_perm(row.x, row.y, kLow), __byte_perm(row.x, row.y, kHigh),
                      __byte_perm(row.z, row.w, kLow), __byte_perm(row.z, row.w, kHigh));
  } else if constexpr (kCode == Code::kE4M3) {
    return row;
  } else {
    return is_packed
               ? make_uint4(row.x, row.z, row.y, row.w)
               : make_uint4(__byte_perm(row.x, row.z, kLow), __byte_perm(row.x, row.z, kHigh),
                            __byte_perm(row.y, row.w, kLow), __byte_perm(row.y, row.w, kHigh));
  }
}

}  // namespace moebius::cuda::few_rows
