// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Single elements of any dtype as float.  For tests and references; not for loops that matter.
#include <algorithm>
#include <cmath>
#include <limits>

#include "moebius/tensor.h"

namespace moebius {

namespace {

// Bits [index * width, (index + 1) * width) of a little-endian bit string.
uint8_t get_bits(const uint8_t* data, int64_t index, int width) {
  const int64_t bit = index * width;
  const int shift = static_cast<int>(bit % 8);
  uint32_t word = data[bit / 8];
  if (shift + width > 8) {
    word |= static_cast<uint32_t>(data[bit / 8 + 1]) << 8;
  }
  return static_cast<uint8_t>((word >> shift) & ((1u << width) - 1));
}

void set_bits(uint8_t* data, int64_t index, int width, uint8_t value) {
  const int64_t bit = index * width;
  const int shift = static_cast<int>(bit % 8);
  const uint32_t mask = ((1u << width) - 1) << shift;
  const uint32_t word = static_cast<uint32_t>(value) << shift;
  uint8_t* byte = data + bit / 8;
  byte[0] = static_cast<uint8_t>((byte[0] & ~mask) | word);
  if (shift + width > 8) {
    byte[1] = static_cast<uint8_t>((byte[1] & ~(mask >> 8)) | (word >> 8));
  }
}

// NaN becomes 0; 2^63 is the first float beyond every i64.
template <typename Int>
Int to_integer(float value) {
  const double rounded = std::nearbyint(static_cast<double>(value));
  if (std::isnan(rounded)) {
    return 0;
  }
  if (rounded <= static_cast<double>(std::numeric_limits<Int>::min())) {
    return std::numeric_limits<Int>::min();
  }
  if (rounded >= static_cast<double>(std::numeric_limits<Int>::max())) {
    return std::numeric_limits<Int>::max();
  }
  return static_cast<Int>(rounded);
}

// Nearest power of two by exponent rounding (ties to even codes), saturating.
uint8_t e8m0_from_float(float value) {
  if (std::isnan(value)) {
    return 255;
  }
  if (value <= e8m0_to_float(0)) {
    return 0;
  }
  if (std::isinf(value)) {
    return 254;
  }
  int exponent = 0;
  const float fraction = std::frexp(value, &exponent);  // value = fraction * 2^exponent, [0.5, 1)
  int code = exponent - 1 + 127;
  if (fraction > 0.75f || (fraction == 0.75f && (code & 1) != 0)) {
    ++code;
  }
  return static_cast<uint8_t>(std::clamp(code, 0, 254));
}

}  // namespace

float get_float(const Tensor& t, int64_t i) {
  assert(t.device().is_cpu() && i >= 0 && i < t.numel());
  switch (t.dtype()) {
    case DType::kF32:
      return t.data<float>()[i];
    case DType::kF16:
      return static_cast<float>(t.data<Float16>()[i]);
    case DType::kBF16:
      return static_cast<float>(t.data<BFloat16>()[i]);
    case DType::kF8E4M3:
      return static_cast<float>(t.data<F8E4M3>()[i]);
    case DType::kF8E5M2:
      return static_cast<float>(t.data<F8E5M2>()[i]);
    case DType::kI8:
      return static_cast<float>(t.data<int8_t>()[i]);
    case DType::kU8:
    case DType::kBool:
      return static_cast<float>(t.data<uint8_t>()[i]);
    case DType::kI32:
      return static_cast<float>(t.data<int32_t>()[i]);
    case DType::kI64:
      return static_cast<float>(t.data<int64_t>()[i]);
    case DType::kF4E2M1:
      return e2m1_to_float(get_bits(t.data<uint8_t>(), i, 4));
    case DType::kU4:
      return static_cast<float>(get_bits(t.data<uint8_t>(), i, 4));
    case DType::kF6E3M2:
      return e3m2_to_float(get_bits(t.data<uint8_t>(), i, 6));
    case DType::kF6E2M3:
      return e2m3_to_float(get_bits(t.data<uint8_t>(), i, 6));
    case DType::kE8M0:
      return e8m0_to_float(t.data<uint8_t>()[i]);
  }
  return 0.0f;
}

void set_float(const Tensor& t, int64_t i, float value) {
  assert(t.device().is_cpu() && i >= 0 && i < t.numel());
  switch (t.dtype()) {
    case DType::kF32:
      t.data<float>()[i] = value;
      break;
    case DType::kF16:
      t.data<Float16>()[i] = Float16(value);
      break;
    case DType::kBF16:
      t.data<BFloat16>()[i] = BFloat16(value);
      break;
    case DType::kF8E4M3:
      t.data<F8E4M3>()[i] = F8E4M3(value);
      break;
    case DType::kF8E5M2:
      t.data<F8E5M2>()[i] = F8E5M2(value);
      break;
    case DType::kI8:
      t.data<int8_t>()[i] = to_integer<int8_t>(value);
      break;
    case DType::kU8:
      t.data<uint8_t>()[i] = to_integer<uint8_t>(value);
      break;
    case DType::kBool:
      t.data<uint8_t>()[i] = value != 0.0f ? 1 : 0;
      break;
    case DType::kI32:
      t.data<int32_t>()[i] = to_integer<int32_t>(value);
      break;
    case DType::kI64:
      t.data<int64_t>()[i] = to_integer<int64_t>(value);
      break;
    case DType::kF4E2M1:
      set_bits(t.data<uint8_t>(), i, 4, e2m1_from_float(value));
      break;
    case DType::kU4:
      set_bits(t.data<uint8_t>(), i, 4, std::min<uint8_t>(to_integer<uint8_t>(value), 15));
      break;
    case DType::kF6E3M2:
      set_bits(t.data<uint8_t>(), i, 6, e3m2_from_float(value));
      break;
    case DType::kF6E2M3:
      set_bits(t.data<uint8_t>(), i, 6, e2m3_from_float(value));
      break;
    case DType::kE8M0:
      t.data<uint8_t>()[i] = e8m0_from_float(value);
      break;
  }
}

Tensor convert(const Tensor& tensor, DType dtype) {
  Tensor result = Tensor::empty(tensor.shape(), dtype, tensor.device());
  const int64_t n = tensor.numel();
  for (int64_t i = 0; i < n; ++i) {
    set_float(result, i, get_float(tensor, i));
  }
  return result;
}

}  // namespace moebius
