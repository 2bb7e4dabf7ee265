// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Small tensors for tests of the quant stage.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <vector>

#include "moebius/quantize.h"
#include "moebius/tensor.h"

namespace moebius {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// REQUIRES: the values are representable in dtype.
inline Tensor tensor_of(const Shape& shape,
                        const std::vector<float>& values,
                        DType dtype = DType::kF32) {
  const Tensor t = Tensor::empty(shape, dtype);
  for (size_t i = 0; i < values.size(); ++i) {
    set_float(t, static_cast<int64_t>(i), values[i]);
  }
  return t;
}

// A tensor [1, values.size()].
inline Tensor row_of(const std::vector<float>& values, DType dtype = DType::kF32) {
  return tensor_of({1, static_cast<int64_t>(values.size())}, values, dtype);
}

inline Tensor bytes_of(const Shape& shape, const std::vector<uint8_t>& bytes, DType dtype) {
  const Tensor t = Tensor::empty(shape, dtype);
  std::memcpy(t.raw(), bytes.data(), bytes.size());
  return t;
}

inline std::vector<uint8_t> raw_bytes(const Tensor& t) {
  const auto* begin = reinterpret_cast<const uint8_t*>(t.bytes());
  return {begin, begin + t.nbytes()};
}

inline std::vector<float> floats(const Tensor& t) {
  std::vector<float> result;
  for (int64_t i = 0; i < t.numel(); ++i) {
    result.push_back(get_float(t, i));
  }
  return result;
}

inline std::vector<float> dequantized(const Quantized& q, const QuantizeSpec& spec) {
  const Tensor out = Tensor::empty(q.values.shape(), DType::kF32);
  dequantize(q, spec, out, Stream{});
  return floats(out);
}

// Normally distributed numbers.  Each row and each 16 columns have a factor, so that scales differ.
inline Tensor random_matrix(int64_t rows, int64_t cols, DType dtype, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  const Tensor t = Tensor::empty({rows, cols}, dtype);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const float factor = 0.25f + static_cast<float>((r * 7 + c / 16 * 3) % 11);
      set_float(t, r * cols + c, normal(rng) * factor);
    }
  }
  return t;
}

}  // namespace moebius
