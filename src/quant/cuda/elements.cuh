// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Encodes and decodes elements on the GPU, eight at a time, with the bits that row_kernels.h
// specifies.  The branch on `Encode` or `Code` is uniform and is taken once per eight elements.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "core/cuda/floats.cuh"
#include "quant/row_kernels.h"

namespace moebius::quant::device {

using cuda::kVector;

// A group's factor, prepared for multiplying or dividing.
struct Factor {
  float f;
  float reciprocal;
  bool is_moderate;  // moderate_quotient() may be used
  float zero_point;
};

__device__ __forceinline__ bool is_moderate(float f) {
  return f > 0x1p-60f && f < 0x1p120f;
}

__device__ __forceinline__ Factor make_factor(float f, float zero_point) {
  return {f, 1.0f / f, is_moderate(f), zero_point};
}

// x / f, rounded correctly when the quotient's magnitude is in [2^-20, 2^20]; no code depends on
// the last bits of other quotients.  Why it is correct: 1/f is rounded correctly and nothing
// underflows, so the second step q - (q * f - x) / f is exact (Markstein).  Inlined and without
// branches it costs half of x / f.  The residual is negated so that the zero that comes from -0
// keeps its sign.  REQUIRES: factor.is_moderate.
__device__ __forceinline__ float moderate_quotient(float x, const Factor& factor) {
  const float estimate = x * factor.reciprocal;
  float q = fmaf(fmaf(estimate, factor.f, -x), -factor.reciprocal, estimate);
  q = fmaf(fmaf(q, factor.f, -x), -factor.reciprocal, q);
  return fabsf(estimate) < 0x1p20f ? q : estimate;
}

// Multiplies or divides elements by the factor, as `kHow` says.
template <Encode kHow, int kCount>
__device__ __forceinline__ void scale_by(const Factor& factor,
                                         const float (&x)[kCount],
                                         float (&v)[kCount]) {
  if constexpr (!divides(kHow)) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      v[i] = x[i] * factor.f;
    }
  } else if (factor.is_moderate) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      v[i] = moderate_quotient(x[i], factor);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      v[i] = x[i] / factor.f;
    }
  }
}

// NaN becomes the upper bound.
__device__ __forceinline__ float clamped(float v, float low, float high) {
  return fmaxf(fminf(v, high), low);
}

inline constexpr float kRoundsTo448 = 464.0f;  // the largest value that e4m3 rounds to 448

// Adding this to a number below 2^22 rounds the number to an integer (nearest even), which is then
// in the low bits of the sum.
inline constexpr float kNoFraction = 12582912.0f;

__device__ __forceinline__ uint32_t low_byte(float integer) {
  return __float_as_uint(integer + kNoFraction) & 0xffu;
}
__device__ __forceinline__ float int8_range(float v) {
  return clamped(v == v ? v : 0.0f, -128.0f, 127.0f);
}

// Saturates at 448; NaN stays NaN.
__device__ __forceinline__ uint32_t e4m3_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// The code of v, rounded to nearest even, in a format with kMantissa bits behind the point whose
// lowest exponent is kLowest (biased as in f32).  REQUIRES: |v| is at most the format's largest
// value.
// Why the sum gives the code: the last bit of `step` is the format's step at |v|, and the low bits
// of `step` hold the number of codes with smaller exponents.  That number is even, so ties are
// rounded as the format demands.
template <int kMantissa, uint32_t kLowest>
__device__ __forceinline__ uint32_t minifloat(float v, int sign_bit) {
  const uint32_t bits = __float_as_uint(v);
  const uint32_t exponent = max((bits & 0x7fffffffu) >> 23, kLowest);
  constexpr uint32_t kOne = (1u << 23) + (1u << kMantissa);
  constexpr uint32_t kAtZero =
      (static_cast<uint32_t>(23 - kMantissa) << 23) + 0x400000u - (kLowest << kMantissa);
  const float step = __uint_as_float(exponent * kOne + kAtZero);
  const uint32_t code = __float_as_uint(fabsf(v) + step) & 0x1fu;
  return code | bits >> 31 << sign_bit;
}

// Returns the value of the code that minifloat() gives, by fewer instructions.
template <int kMantissa, uint32_t kLowest>
__device__ __forceinline__ float minifloat_value(float v) {
  const uint32_t exponent = max(__float_as_uint(v) & 0x7f800000u, kLowest << 23);
  constexpr uint32_t kToStep = (static_cast<uint32_t>(23 - kMantissa) << 23) + 0x400000u;
  const float step = __uint_as_float(exponent + kToStep);
  return copysignf((fabsf(v) + step) - step, v);
}

// The code of an element x that has been scaled to v; x is needed for the sign of NaN.
template <Encode kHow>
__device__ __forceinline__ uint32_t encode_scaled(float v, float x, const Factor& factor) {
  if constexpr (kHow == Encode::kE4M3Multiply || kHow == Encode::kE4M3Divide) {
    return e4m3_pair(fminf(v, kE4M3Max), 0.0f) & 0xffu;  // fminf: NaN becomes the bound
  } else if constexpr (kHow == Encode::kE4M3Overflow) {
    const uint32_t nan = 0x7fu | (__float_as_uint(x) >> 31 << 7);  // f > 0
    return fabsf(v) <= kRoundsTo448 ? e4m3_pair(v, 0.0f) & 0xffu : nan;
  } else if constexpr (kHow == Encode::kI8NearestDivide) {
    return low_byte(int8_range(v));
  } else if constexpr (kHow == Encode::kI8AwayMultiply) {
    const float ranged = int8_range(v);
    // Sums are rounded toward zero, so that none reaches a half or an integer above it.
    const float half_more = __fadd_rz(fabsf(ranged), 0.5f);
    const float integer = __fadd_rz(half_more, kNoFraction) - kNoFraction;
    return low_byte(copysignf(integer, ranged));
  } else if constexpr (kHow == Encode::kI8TruncateDivide) {
    const float ranged = int8_range(v);
    const float integer = __fadd_rz(fabsf(ranged), kNoFraction) - kNoFraction;
    return low_byte(copysignf(integer, ranged));
  } else if constexpr (kHow == Encode::kU4Divide) {
    // Sums beyond 2^20 are clamped, so their fraction does not matter.
    const float near = v == v ? rintf(v) : 0.0f;
    return low_byte(clamped(near + factor.zero_point, 0.0f, 15.0f));
  } else if constexpr (kHow == Encode::kE2M1Multiply) {
    return minifloat<1, 127>(clamped(v, -kE2M1Max, kE2M1Max), 3);
  } else if constexpr (kHow == Encode::kE3M2Multiply) {
    return minifloat<2, 125>(clamped(v, -kE3M2Max, kE3M2Max), 5);
  } else {
    static_assert(kHow == Encode::kE2M3Multiply);
    return minifloat<3, 127>(clamped(v, -kE2M3Max, kE2M3Max), 5);
  }
}

// Whether the hardware's conversion of pairs gives the codes of min(v, 448).
template <Encode kHow>
__device__ __forceinline__ bool takes_pairs(const float (&v)[kVector]) {
  bool all =
      kHow == Encode::kE4M3Multiply || kHow == Encode::kE4M3Divide || kHow == Encode::kE4M3Overflow;
  if constexpr (kHow == Encode::kE4M3Overflow) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      all = all && fabsf(v[i]) <= kRoundsTo448;
    }
  }
  return all;
}

// Eight codes as a little-endian bit string of 8, 6 or 4 bytes.
template <Encode kHow>
__device__ __forceinline__ uint64_t encode8_as(const float (&x)[kVector], const Factor& factor) {
  float v[kVector];
  scale_by<kHow>(factor, x, v);
  uint64_t codes = 0;
  if (takes_pairs<kHow>(v)) {
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      const uint32_t pair = e4m3_pair(fminf(v[i], kE4M3Max), fminf(v[i + 1], kE4M3Max));
      codes |= static_cast<uint64_t>(pair) << (8 * i);
    }
    return codes;
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const uint32_t code = encode_scaled<kHow>(v[i], x[i], factor);
    codes |= static_cast<uint64_t>(code) << (code_bits(code_of(kHow)) * i);
  }
  return codes;
}

// The same as encode8_as<Encode::kE4M3Divide> for any even number of elements that were 16 bits
// wide and are no larger than 448 f.  f is moderate or a power of two, or infinite when an element
// is.
// Why one step is enough here: x has at most 11 significant bits, and for no factor and no such x
// does one step leave the quotient on the wrong side of the middle between two codes
// (tests/quant/narrow_quotient_test.cc tries all of them).
template <int kCount>
__device__ __forceinline__ uint64_t encode_narrow_e4m3(const float (&x)[kCount],
                                                       const Factor& factor) {
  // The reciprocal of an infinite f is 0; the step then leaves the estimate as it is, 0 or NaN.
  const float f = factor.reciprocal == 0.0f ? 0.0f : factor.f;
  float v[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float estimate = x[i] * factor.reciprocal;
    v[i] = fmaf(fmaf(estimate, f, -x[i]), -factor.reciprocal, estimate);
  }
  uint64_t codes = 0;
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const uint32_t pair = e4m3_pair(fminf(v[i], kE4M3Max), fminf(v[i + 1], kE4M3Max));
    codes |= static_cast<uint64_t>(pair) << (8 * i);
  }
  return codes;
}

__device__ __forceinline__ uint64_t encode8(Encode how,
                                            const float (&x)[kVector],
                                            const Factor& factor) {
  uint64_t codes = 0;
  visit_encode(how,
               [&](auto constant) { codes = encode8_as<decltype(constant)::value>(x, factor); });
  return codes;
}

__device__ __forceinline__ uint32_t encode1(Encode how, float x, const Factor& factor) {
  uint32_t code = 0;
  visit_encode(how, [&](auto constant) {
    constexpr Encode kHow = decltype(constant)::value;
    float v[1];
    scale_by<kHow>(factor, {x}, v);
    code = encode_scaled<kHow>(v[0], x, factor);
  });
  return code;
}

__device__ __forceinline__ float decode1(Code code, uint32_t bits) {
  switch (code) {
    case Code::kE4M3:
      return __half2float(
          __half(__nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(bits), __NV_E4M3)));
    case Code::kI8:
      return static_cast<float>(static_cast<int8_t>(bits));
    case Code::kU4:
      return static_cast<float>(bits);
    case Code::kE2M1:
      return e2m1_to_float(static_cast<uint8_t>(bits));
    case Code::kE3M2:
      return e3m2_to_float(static_cast<uint8_t>(bits));
    case Code::kE2M3:
      return e2m3_to_float(static_cast<uint8_t>(bits));
  }
  return 0.0f;
}

template <Code kCode>
__device__ __forceinline__ void decode8_as(uint64_t codes, float (&v)[kVector]) {
  constexpr int kWidth = code_bits(kCode);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    v[i] = decode1(kCode, static_cast<uint32_t>(codes >> (kWidth * i)) & ((1u << kWidth) - 1));
  }
}

// Sets v to the values of the codes that encode8_as() gives.
template <Encode kHow>
__device__ __forceinline__ void round8_as(const float (&x)[kVector],
                                          float factor,
                                          float (&v)[kVector]) {
  if constexpr (kHow == Encode::kE2M1Multiply || kHow == Encode::kE3M2Multiply ||
                kHow == Encode::kE2M3Multiply) {
    constexpr float kMost = kHow == Encode::kE2M1Multiply   ? kE2M1Max
                            : kHow == Encode::kE3M2Multiply ? kE3M2Max
                                                            : kE2M3Max;
    constexpr int kMantissa = kHow == Encode::kE2M1Multiply   ? 1
                              : kHow == Encode::kE3M2Multiply ? 2
                                                              : 3;
    constexpr uint32_t kLowest = kHow == Encode::kE3M2Multiply ? 125 : 127;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      v[i] = minifloat_value<kMantissa, kLowest>(clamped(x[i] * factor, -kMost, kMost));
    }
  } else {
    decode8_as<code_of(kHow)>(encode8_as<kHow>(x, make_factor(factor, 0.0f)), v);
  }
}

__device__ __forceinline__ void decode8(Code code, uint64_t codes, float (&v)[kVector]) {
  visit_code(code, [&](auto constant) { decode8_as<decltype(constant)::value>(codes, v); });
}

// The bytes of eight codes.
__host__ __device__ constexpr int vector_bytes(Code code) {
  return code_bits(code);  // 8 codes of b bits
}

// How many elements fill whole bytes, and how many bytes they fill.
__host__ __device__ constexpr int pack_elements(Code code) {
  return code_bits(code) == 8 ? 1 : code_bits(code) == 6 ? 4 : 2;
}
__host__ __device__ constexpr int pack_bytes(Code code) {
  return code_bits(code) == 6 ? 3 : 1;
}

__host__ __device__ constexpr size_t vector_alignment(Code code) {
  return code_bits(code) == 6 ? 2 : static_cast<size_t>(code_bits(code));
}

__device__ __forceinline__ void store_vector(void* out,
                                             DType dtype,
                                             int64_t unit,
                                             const float (&v)[kVector]) {
  switch (dtype) {
    case DType::kF32:
      return cuda::store8(static_cast<float*>(out) + unit * kVector, v);
    case DType::kBF16:
      return cuda::store8(static_cast<BFloat16*>(out) + unit * kVector, v);
    default:
      return cuda::store8(static_cast<Float16*>(out) + unit * kVector, v);
  }
}

__device__ __forceinline__ void store_element(void* out, DType dtype, int64_t i, float v) {
  switch (dtype) {
    case DType::kF32:
      return cuda::store1(static_cast<float*>(out) + i, v);
    case DType::kBF16:
      return cuda::store1(static_cast<BFloat16*>(out) + i, v);
    default:
      return cuda::store1(static_cast<Float16*>(out) + i, v);
  }
}

// REQUIRES: p is aligned to vector_alignment(code), also for load_codes().
__device__ __forceinline__ void store_codes(Code code, uint8_t* p, uint64_t codes) {
  const auto low = static_cast<uint32_t>(codes);
  switch (vector_bytes(code)) {
    case 8:
      *reinterpret_cast<uint2*>(p) = make_uint2(low, static_cast<uint32_t>(codes >> 32));
      break;
    case 6: {
      auto* to = reinterpret_cast<uint16_t*>(p);
      to[0] = static_cast<uint16_t>(low);
      to[1] = static_cast<uint16_t>(low >> 16);
      to[2] = static_cast<uint16_t>(codes >> 32);
      break;
    }
    default:
      *reinterpret_cast<uint32_t*>(p) = low;
  }
}

__device__ __forceinline__ uint64_t load_codes(Code code, const uint8_t* p) {
  switch (vector_bytes(code)) {
    case 8: {
      const uint2 words = *reinterpret_cast<const uint2*>(p);
      return words.x | static_cast<uint64_t>(words.y) << 32;
    }
    case 6: {
      const auto* from = reinterpret_cast<const uint16_t*>(p);
      return from[0] | static_cast<uint32_t>(from[1]) << 16 | static_cast<uint64_t>(from[2]) << 32;
    }
    default:
      return *reinterpret_cast<const uint32_t*>(p);
  }
}

}  // namespace moebius::quant::device
