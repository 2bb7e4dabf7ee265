// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Scale rules: how the range of a group's elements determines its scale and how they are encoded.
// docs/formats.md has the rule of each format and says where it comes from.
// Why constexpr: kernels evaluate the same functions on the GPU.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "moebius/quantize.h"
#include "quant/row_kernels.h"

namespace moebius::quant {

Code code_of(QuantFormat format);
Encode encode_of(const QuantizeSpec& spec);

// Whether bf16 or f16 can represent every code times its block scale.  Both hold e4m3 times e2m1,
// and bf16 codes times powers of two, of which f16 has too few.
inline bool scaled_codes_fit(QuantFormat format, DType dtype) {
  return format == QuantFormat::kNvfp4 || (dtype == DType::kBF16 && is_ocp_mx(format));
}

struct GroupCode {
  float factor = 0.0f;      // Encode's f
  float zero_point = 0.0f;  // int4
  float scale = 0.0f;       // as stored in f32; unused with scale_code
  uint8_t scale_code = 0;   // as stored in e8m0 (mx) or e4m3 (nvfp4)
};

namespace detail {

inline constexpr float kInt8Max = 127.0f;
inline constexpr float kAbsmaxFloor = 1e-10f;  // for int8 rows and for fp8 and int8 groups
inline constexpr float kFp8TokenScaleFloor = 1.0f / (kE4M3Max * 512.0f);
inline constexpr float kInt4RangeFloor = 1e-5f;

// Why by value: a kernel cannot take the address of a constant, as std::max would.
constexpr float larger(float a, float b) {
  return a < b ? b : a;
}
constexpr float smaller(float a, float b) {
  return b < a ? b : a;
}

// 2^ceil(log2(value)).  REQUIRES: value is positive and normal, or infinite, which it then stays.
constexpr float round_up_to_power_of_two(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  constexpr uint32_t kMantissa = 0x7fffffu;
  return std::bit_cast<float>((bits + kMantissa) & ~kMantissa);
}

constexpr int biased_exponent(float value) {
  return static_cast<int>(std::bit_cast<uint32_t>(value) >> 23);
}

constexpr uint8_t clamp_code(int exponent, int lowest) {
  return static_cast<uint8_t>(exponent < lowest ? lowest : exponent > 254 ? 254 : exponent);
}

// The rule "even": absmax is rounded to the element's mantissa width (halves away from zero), and
// the exponent of the element's largest value is subtracted from its exponent.
constexpr uint8_t even_scale_code(float absmax, int mantissa_bits, int max_exponent) {
  const uint32_t half = 1u << (23 - mantissa_bits - 1);
  const float rounded = std::bit_cast<float>(std::bit_cast<uint32_t>(absmax) + half);
  return clamp_code(biased_exponent(rounded) - max_exponent, 0);
}

constexpr uint8_t mx_scale_code(QuantFormat format, float absmax) {
  switch (format) {
    case QuantFormat::kMxfp4:
      return even_scale_code(absmax, 1, 2);
    case QuantFormat::kMxfp6E3M2:
      return even_scale_code(absmax, 2, 4);
    case QuantFormat::kMxfp6E2M3:
      return even_scale_code(absmax, 3, 2);
    default:  // mxfp8 takes the exponent of absmax as it is
      return clamp_code(biased_exponent(absmax), 1);
  }
}

// The reciprocal 2^(127 - code) is exact, so multiplying by it equals dividing by the scale.
constexpr float e8m0_reciprocal(uint8_t code) {
  return e8m0_to_float(static_cast<uint8_t>(254 - code));
}

constexpr float reciprocal_or_zero(float value) {
  return value != 0.0f ? 1.0f / value : 0.0f;
}

constexpr GroupCode fp8_code(const QuantizeSpec& spec, const Range& range, float scale) {
  if (spec.group.is_per_tensor()) {
    return {.factor = 1.0f / scale, .scale = scale};
  }
  if (spec.group.is_per_token()) {
    scale = larger(range.absmax() / kE4M3Max, kFp8TokenScaleFloor);
  } else {
    scale = larger(range.absmax(), kAbsmaxFloor) / kE4M3Max;
    if (spec.power_of_two_scale) {
      scale = round_up_to_power_of_two(larger(scale, kAbsmaxFloor));
    }
  }
  return {.factor = scale, .scale = scale};
}

constexpr GroupCode int8_code(const QuantizeSpec& spec, const Range& range, float scale) {
  if (spec.group.is_per_tensor()) {
    return {.factor = scale, .scale = scale};
  }
  const float absmax = larger(range.absmax(), kAbsmaxFloor);
  scale = absmax / kInt8Max;
  return {.factor = spec.group.is_per_token() ? kInt8Max / absmax : scale, .scale = scale};
}

// min(15, value rounded to the nearest integer, ties to even) for value >= 0; NaN gives 15.
constexpr float nearest_up_to_15(float value) {
  constexpr float kNoFraction = 12582912.0f;  // 1.5 * 2^23: adding it drops the fraction
  return value < 15.0f ? (value + kNoFraction) - kNoFraction : 15.0f;
}

constexpr GroupCode int4_code(const QuantizeSpec& spec, const Range& range) {
  if (!spec.asymmetric) {
    const float scale = larger(larger(range.max / 7.0f, -range.min / 8.0f), kAbsmaxFloor);
    return {.factor = scale, .zero_point = 8.0f, .scale = scale};
  }
  const float scale = larger(range.max - range.min, kInt4RangeFloor) / 15.0f;
  const float zero_point = nearest_up_to_15(-range.min / scale);
  return {.factor = scale, .zero_point = zero_point, .scale = scale};
}

// Returns the scale of a group before it is rounded to e4m3.
constexpr float nvfp4_wanted_scale(float absmax, float global_scale) {
  return smaller(kE4M3Max, global_scale * (absmax * (1.0f / kE2M1Max)));
}
// Returns what code 1 stands for, by a scale that has been rounded.
constexpr float nvfp4_unit(float scale, float global_scale) {
  return scale * reciprocal_or_zero(global_scale);
}

constexpr GroupCode nvfp4_code(const Range& range, float global_scale) {
  const F8E4M3 scale(nvfp4_wanted_scale(range.absmax(), global_scale));
  const float unit = nvfp4_unit(static_cast<float>(scale), global_scale);
  return {.factor = reciprocal_or_zero(unit), .scale_code = scale.bits};
}

}  // namespace detail

// The scale of a whole tensor, for fp8 and int8 per tensor, or the global scale of nvfp4.
constexpr float tensor_scale(QuantFormat format, float absmax) {
  switch (format) {
    case QuantFormat::kFp8:
      return absmax / kE4M3Max;
    case QuantFormat::kInt8:
      return detail::larger(absmax / detail::kInt8Max, detail::kAbsmaxFloor);
    default: {  // nvfp4; the scale of a zero tensor is 1
      const float scale = kE4M3Max * kE2M1Max / absmax;
      return absmax > 0.0f ? detail::smaller(scale, std::numeric_limits<float>::max()) : 1.0f;
    }
  }
}

// nvfp4 with a global scale per row: the largest power of two with which the scale of a row's
// largest group is an e4m3 number; the scale of a zero row is 1.  Within these bounds it and all
// scales of groups, and their reciprocals, are normal numbers.
constexpr float row_global_scale(float absmax) {
  constexpr float kLeast = 0x1p-117f;  // for the largest f32
  constexpr float kLargest = 0x1p100f;
  constexpr uint32_t kExponent = 0x7f800000u;
  if (!(absmax > 0.0f)) {
    return 1.0f;
  }
  const uint32_t bits = std::bit_cast<uint32_t>(kE4M3Max * kE2M1Max / absmax);
  return detail::larger(detail::smaller(std::bit_cast<float>(bits & kExponent), kLargest), kLeast);
}

// `tensor_scale` is the result of one of the functions above; formats without such a scale ignore
// it.
constexpr GroupCode group_code(const QuantizeSpec& spec, const Range& range, float tensor_scale) {
  switch (spec.format) {
    case QuantFormat::kFp8:
      return detail::fp8_code(spec, range, tensor_scale);
    case QuantFormat::kInt8:
      return detail::int8_code(spec, range, tensor_scale);
    case QuantFormat::kInt4:
      return detail::int4_code(spec, range);
    case QuantFormat::kNvfp4:
      return detail::nvfp4_code(range, tensor_scale);
    default: {
      const uint8_t code = detail::mx_scale_code(spec.format, range.absmax());
      return {.factor = detail::e8m0_reciprocal(code), .scale_code = code};
    }
  }
}

// The code of a whole row, in fp8 or int8 per token, whose scale is given.
constexpr GroupCode given_row_code(QuantFormat format, float scale) {
  return {.factor = format == QuantFormat::kInt8 ? 1.0f / scale : scale, .scale = scale};
}

}  // namespace moebius::quant
