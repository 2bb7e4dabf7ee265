// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes single elements of any dtype as float.  Tests and references use this; it is too
// slow for other loops.
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

// Rounds to the nearest integer and clamps; NaN becomes 0.  2^63 is the first float above every
// i64.
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

// The nearest power of two; ties go to even codes, and values out of range saturate.
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

// Elements in memory.  Each can be loaded as a float and stored from one.
template <typename T>
struct Float {
  T* at;
  float load() const { return static_cast<float>(*at); }
  void store(float value) const { *at = T(value); }
};
template <typename T>
struct Integer {
  T* at;
  float load() const { return static_cast<float>(*at); }
  void store(float value) const { *at = to_integer<T>(value); }
};
struct Bool {
  uint8_t* at;
  float load() const { return static_cast<float>(*at); }
  void store(float value) const { *at = value != 0.0f ? 1 : 0; }
};
struct Exponent {
  uint8_t* at;
  float load() const { return e8m0_to_float(*at); }
  void store(float value) const { *at = e8m0_from_float(value); }
};
struct Packed {
  uint8_t* data;
  int64_t index;
  int width;
  float (*decode)(uint8_t);
  uint8_t (*encode)(float);
  float load() const { return decode(get_bits(data, index, width)); }
  void store(float value) const { set_bits(data, index, width, encode(value)); }
};

float u4_to_float(uint8_t code) {
  return static_cast<float>(code);
}
uint8_t u4_from_float(float value) {
  return std::min<uint8_t>(to_integer<uint8_t>(value), 15);
}

// Calls fn with element i.
template <typename Fn>
void visit(const Tensor& t, int64_t i, const Fn& fn) {
  assert(t.device().is_cpu() && i >= 0 && i < t.numel());
  switch (t.dtype()) {
    case DType::kF32:
      return fn(Float<float>{t.data<float>() + i});
    case DType::kF16:
      return fn(Float<Float16>{t.data<Float16>() + i});
    case DType::kBF16:
      return fn(Float<BFloat16>{t.data<BFloat16>() + i});
    case DType::kF8E4M3:
      return fn(Float<F8E4M3>{t.data<F8E4M3>() + i});
    case DType::kF8E5M2:
      return fn(Float<F8E5M2>{t.data<F8E5M2>() + i});
    case DType::kI8:
      return fn(Integer<int8_t>{t.data<int8_t>() + i});
    case DType::kU8:
      return fn(Integer<uint8_t>{t.data<uint8_t>() + i});
    case DType::kI32:
      return fn(Integer<int32_t>{t.data<int32_t>() + i});
    case DType::kI64:
      return fn(Integer<int64_t>{t.data<int64_t>() + i});
    case DType::kBool:
      return fn(Bool{t.data<uint8_t>() + i});
    case DType::kE8M0:
      return fn(Exponent{t.data<uint8_t>() + i});
    case DType::kU4:
      return fn(Packed{t.data<uint8_t>(), i, 4, u4_to_float, u4_from_float});
    case DType::kF4E2M1:
      return fn(Packed{t.data<uint8_t>(), i, 4, e2m1_to_float, e2m1_from_float});
    case DType::kF6E3M2:
      return fn(Packed{t.data<uint8_t>(), i, 6, e3m2_to_float, e3m2_from_float});
    case DType::kF6E2M3:
      return fn(Packed{t.data<uint8_t>(), i, 6, e2m3_to_float, e2m3_from_float});
  }
}

}  // namespace

float get_float(const Tensor& t, int64_t i) {
  float value = 0.0f;
  visit(t, i, [&](const auto& element) { value = element.load(); });
  return value;
}

void set_float(const Tensor& t, int64_t i, float value) {
  visit(t, i, [&](const auto& element) { element.store(value); });
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
