// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `ref`: handles one element at a time, as row_kernels.h and docs/formats.md specify.
#include <cassert>
#include <cmath>

#include "quant/kernel_tables.h"

namespace moebius::quant {

namespace {

float load(const void* x, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(x)[i];
    case DType::kBF16:
      return static_cast<float>(static_cast<const BFloat16*>(x)[i]);
    default:
      assert(dtype == DType::kF16);
      return static_cast<float>(static_cast<const Float16*>(x)[i]);
  }
}

void store(void* out, DType dtype, int64_t i, float value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(out)[i] = value;
      break;
    case DType::kBF16:
      static_cast<BFloat16*>(out)[i] = BFloat16(value);
      break;
    default:
      assert(dtype == DType::kF16);
      static_cast<Float16*>(out)[i] = Float16(value);
  }
}

// NaN becomes the upper bound.
float clamp(float value, float low, float high) {
  const float below = value < high ? value : high;
  return below > low ? below : low;
}

// Clamps before it rounds, which gives the same integer.  NaN becomes 0.
template <typename Round>
uint8_t to_i8(float value, Round round) {
  const float number = std::isnan(value) ? 0.0f : value;
  return static_cast<uint8_t>(static_cast<int8_t>(round(clamp(number, -128.0f, 127.0f))));
}

uint8_t to_u4(float value, float zero_point) {
  const float number = std::isnan(value) ? 0.0f : value;
  return static_cast<uint8_t>(clamp(std::nearbyint(number) + zero_point, 0.0f, 15.0f));
}

uint8_t encode_element(Encode how, float x, float f, float zero_point) {
  switch (how) {
    case Encode::kE4M3Multiply:
      return F8E4M3(clamp(x * f, -kE4M3Max, kE4M3Max)).bits;
    case Encode::kE4M3Divide:
      return F8E4M3(clamp(x / f, -kE4M3Max, kE4M3Max)).bits;
    case Encode::kE4M3Overflow:
      return F8E4M3::overflowing(x * f).bits;
    case Encode::kI8NearestDivide:
      return to_i8(x / f, [](float v) { return std::nearbyint(v); });
    case Encode::kI8AwayMultiply:
      return to_i8(x * f, [](float v) { return std::round(v); });
    case Encode::kI8TruncateDivide:
      return to_i8(x / f, [](float v) { return std::trunc(v); });
    case Encode::kU4Divide:
      return to_u4(x / f, zero_point);
    case Encode::kE2M1Multiply:
      return e2m1_from_float(clamp(x * f, -kE2M1Max, kE2M1Max));
    case Encode::kE3M2Multiply:
      return e3m2_from_float(clamp(x * f, -kE3M2Max, kE3M2Max));
    case Encode::kE2M3Multiply:
      return e2m3_from_float(clamp(x * f, -kE2M3Max, kE2M3Max));
  }
  return 0;
}

float decode_element(Code code, uint8_t bits) {
  switch (code) {
    case Code::kE4M3: {
      F8E4M3 value;
      value.bits = bits;
      return static_cast<float>(value);
    }
    case Code::kI8:
      return static_cast<float>(static_cast<int8_t>(bits));
    case Code::kU4:
      return static_cast<float>(bits);
    case Code::kE2M1:
      return e2m1_to_float(bits);
    case Code::kE3M2:
      return e3m2_to_float(bits);
    case Code::kE2M3:
      return e2m3_to_float(bits);
  }
  return 0.0f;
}

void range(const void* x, DType dtype, int64_t n, int64_t group, Range* ranges) {
  for (int64_t i = 0; i < n; ++i) {
    const float value = load(x, dtype, i);
    Range& range = ranges[i / group];
    range.min = value < range.min ? value : range.min;
    range.max = value > range.max ? value : range.max;
  }
}

// Codes are a little-endian bit string: element i is bits [i * width, (i + 1) * width).
void encode(const EncodeRow& row) {
  const int width = code_bits(code_of(row.how));
  assert(row.n * width % 8 == 0);
  uint8_t* codes = row.codes;
  uint32_t pending = 0;
  int num_pending = 0;
  for (int64_t i = 0; i < row.n; ++i) {
    const int64_t j = i / row.group;
    const float zero_point = row.how == Encode::kU4Divide ? row.zero_points[j] : 0.0f;
    const float x = load(row.x, row.dtype, i);
    pending |= uint32_t{encode_element(row.how, x, row.factors[j], zero_point)} << num_pending;
    num_pending += width;
    while (num_pending >= 8) {
      *codes++ = static_cast<uint8_t>(pending);
      pending >>= 8;
      num_pending -= 8;
    }
  }
}

void decode(const DecodeRow& row) {
  const int width = code_bits(row.code);
  assert(row.n * width % 8 == 0);
  const uint8_t* codes = row.codes;
  uint32_t pending = 0;
  int num_pending = 0;
  for (int64_t i = 0; i < row.n; ++i) {
    while (num_pending < width) {
      pending |= uint32_t{*codes++} << num_pending;
      num_pending += 8;
    }
    const uint8_t bits = static_cast<uint8_t>(pending & ((1u << width) - 1));
    pending >>= width;
    num_pending -= width;
    const int64_t j = i / row.group;
    const float zero_point = row.zero_points != nullptr ? row.zero_points[j] : 0.0f;
    store(row.out, row.dtype, i, (decode_element(row.code, bits) - zero_point) * row.scales[j]);
  }
}

void widen(const void* x, DType dtype, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = load(x, dtype, i);
  }
}

}  // namespace

const RowKernels ref_kernels = {range, encode, decode, widen};

}  // namespace moebius::quant
