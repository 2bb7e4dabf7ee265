// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "quant/group_rule.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace moebius::quant {

namespace {

constexpr float kInt8Max = 127.0f;
constexpr float kAbsmaxFloor = 1e-10f;  // of int8 rows and of fp8 and int8 groups
constexpr float kFp8TokenScaleFloor = 1.0f / (kE4M3Max * 512.0f);
constexpr float kInt4RangeFloor = 1e-5f;

// 2^ceil(log2(value)); value is normal and positive.
float round_up_to_power_of_two(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  constexpr uint32_t kMantissa = 0x7fffffu;
  return std::bit_cast<float>((bits + kMantissa) & ~kMantissa);
}

int biased_exponent(float value) {
  return static_cast<int>(std::bit_cast<uint32_t>(value) >> 23);
}

// "Even": the exponent of absmax rounded to the element's mantissa width (halves away from zero),
// less the exponent of the element's largest value.
uint8_t even_scale_code(float absmax, int mantissa_bits, int max_exponent) {
  const uint32_t half = 1u << (23 - mantissa_bits - 1);
  const float rounded = std::bit_cast<float>(std::bit_cast<uint32_t>(absmax) + half);
  return static_cast<uint8_t>(std::clamp(biased_exponent(rounded) - max_exponent, 0, 254));
}

uint8_t mx_scale_code(QuantFormat format, float absmax) {
  switch (format) {
    case QuantFormat::kMxfp4:
      return even_scale_code(absmax, 1, 2);
    case QuantFormat::kMxfp6E3M2:
      return even_scale_code(absmax, 2, 4);
    case QuantFormat::kMxfp6E2M3:
      return even_scale_code(absmax, 3, 2);
    default:  // mxfp8: the exponent of absmax as it is
      return static_cast<uint8_t>(std::clamp(biased_exponent(absmax), 1, 254));
  }
}

// The reciprocal 2^(127 - code), exact: dividing by the scale and multiplying by this agree.
float e8m0_reciprocal(uint8_t code) {
  return e8m0_to_float(static_cast<uint8_t>(254 - code));
}

float reciprocal_or_zero(float value) {
  return value != 0.0f ? 1.0f / value : 0.0f;
}

GroupCode fp8_code(const QuantizeSpec& spec, const Range& range, float scale) {
  if (spec.group.is_per_tensor()) {
    return {.factor = 1.0f / scale, .scale = scale};
  }
  if (spec.group.is_per_token()) {
    scale = std::max(range.absmax() / kE4M3Max, kFp8TokenScaleFloor);
  } else {
    scale = std::max(range.absmax(), kAbsmaxFloor) / kE4M3Max;
    if (spec.power_of_two_scale) {
      scale = round_up_to_power_of_two(std::max(scale, kAbsmaxFloor));
    }
  }
  return {.factor = scale, .scale = scale};
}

GroupCode int8_code(const QuantizeSpec& spec, const Range& range, float scale) {
  if (spec.group.is_per_tensor()) {
    return {.factor = scale, .scale = scale};
  }
  const float absmax = std::max(range.absmax(), kAbsmaxFloor);
  scale = absmax / kInt8Max;
  return {.factor = spec.group.is_per_token() ? kInt8Max / absmax : scale, .scale = scale};
}

GroupCode int4_code(const QuantizeSpec& spec, const Range& range) {
  if (!spec.asymmetric) {
    const float scale = std::max({range.max / 7.0f, -range.min / 8.0f, kAbsmaxFloor});
    return {.factor = scale, .zero_point = 8.0f, .scale = scale};
  }
  const float scale = std::max(range.max - range.min, kInt4RangeFloor) / 15.0f;
  const float zero_point = std::min(15.0f, std::nearbyint(-range.min / scale));
  return {.factor = scale, .zero_point = zero_point, .scale = scale};
}

GroupCode nvfp4_code(const Range& range, float global_scale) {
  const float wanted = global_scale * (range.absmax() * (1.0f / kE2M1Max));
  const F8E4M3 scale(std::min(kE4M3Max, wanted));
  const float unit = static_cast<float>(scale) * reciprocal_or_zero(global_scale);
  return {.factor = reciprocal_or_zero(unit), .scale_code = scale.bits};
}

}  // namespace

Code code_of(QuantFormat format) {
  switch (format) {
    case QuantFormat::kFp8:
    case QuantFormat::kMxfp8:
      return Code::kE4M3;
    case QuantFormat::kInt8:
      return Code::kI8;
    case QuantFormat::kInt4:
      return Code::kU4;
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      return Code::kE2M1;
    case QuantFormat::kMxfp6E3M2:
      return Code::kE3M2;
    case QuantFormat::kMxfp6E2M3:
      return Code::kE2M3;
  }
  return Code::kE4M3;
}

float tensor_scale(QuantFormat format, float absmax) {
  switch (format) {
    case QuantFormat::kFp8:
      return absmax / kE4M3Max;
    case QuantFormat::kInt8:
      return std::max(absmax / kInt8Max, kAbsmaxFloor);
    default: {  // nvfp4; a zero tensor has no scale of its own
      const float scale = kE4M3Max * kE2M1Max / absmax;
      return absmax > 0.0f ? std::min(scale, std::numeric_limits<float>::max()) : 1.0f;
    }
  }
}

Encode encode_of(const QuantizeSpec& spec) {
  switch (spec.format) {
    case QuantFormat::kFp8:
      return spec.group.is_per_tensor() ? Encode::kE4M3Multiply : Encode::kE4M3Divide;
    case QuantFormat::kInt8:
      if (spec.group.is_per_tensor()) {
        return Encode::kI8NearestDivide;
      }
      return spec.group.is_per_token() ? Encode::kI8AwayMultiply : Encode::kI8TruncateDivide;
    case QuantFormat::kInt4:
      return Encode::kU4Divide;
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      return Encode::kE2M1Multiply;
    case QuantFormat::kMxfp6E3M2:
      return Encode::kE3M2Multiply;
    case QuantFormat::kMxfp6E2M3:
      return Encode::kE2M3Multiply;
    case QuantFormat::kMxfp8:
      return Encode::kE4M3Overflow;
  }
  return Encode::kE4M3Multiply;
}

GroupCode group_code(const QuantizeSpec& spec, const Range& range, float tensor_scale) {
  switch (spec.format) {
    case QuantFormat::kFp8:
      return fp8_code(spec, range, tensor_scale);
    case QuantFormat::kInt8:
      return int8_code(spec, range, tensor_scale);
    case QuantFormat::kInt4:
      return int4_code(spec, range);
    case QuantFormat::kNvfp4:
      return nvfp4_code(range, tensor_scale);
    default: {
      const uint8_t code = mx_scale_code(spec.format, range.absmax());
      return {.factor = e8m0_reciprocal(code), .scale_code = code};
    }
  }
}

}  // namespace moebius::quant
