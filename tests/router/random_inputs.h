// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Inputs for the router's tests, which are equal for equal seeds, and the error of logits.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

#include "moebius/tensor.h"

namespace moebius::testing {

// Elements are normally distributed around 0 with standard deviation `scale`.
inline Tensor random_tensor(Shape shape, DType dtype, uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  Tensor tensor = Tensor::empty(shape, dtype);
  for (int64_t i = 0, n = tensor.numel(); i < n; ++i) {
    set_float(tensor, i, normal(random));
  }
  return tensor;
}

// Logits with all kinds of rows that select() must handle: spread, clustered, with ties, extreme.
inline Tensor random_logits(int64_t num_tokens, int64_t num_experts, uint64_t seed) {
  Tensor logits = random_tensor({num_tokens, num_experts}, DType::kF32, seed, 2.0f);
  for (int64_t t = 0; t < num_tokens; ++t) {
    float* row = logits.data<float>() + t * num_experts;
    for (int64_t e = 0; e < num_experts; ++e) {
      switch (t % 5) {
        case 1:
          row[e] = std::round(row[e]);  // many ties
          break;
        case 2:
          row[e] *= 40.0f;  // underflow in softmax, saturation in sigmoid
          break;
        case 3:
          row[e] = row[e] * 1e-3f - 7.0f;
          break;
        default:
          break;
      }
    }
  }
  return logits;
}

// The largest error of a logit against f64, divided by the sum of the magnitudes of its products.
inline double worst_error(const Tensor& out, const Tensor& hidden, const Tensor& gate) {
  const Tensor x = convert(hidden, DType::kF32), w = convert(gate, DType::kF32);
  const int64_t depth = x.dim(1);
  double worst = 0.0;
  for (int64_t t = 0; t < x.dim(0); ++t) {
    for (int64_t e = 0; e < w.dim(0); ++e) {
      double sum = 0.0, magnitude = 0.0;
      for (int64_t h = 0; h < depth; ++h) {
        const double product = static_cast<double>(x.data<float>()[t * depth + h]) *
                               static_cast<double>(w.data<float>()[e * depth + h]);
        sum += product;
        magnitude += std::fabs(product);
      }
      const double error = std::fabs(out.data<float>()[t * w.dim(0) + e] - sum) / magnitude;
      worst = error <= worst ? worst : error;  // a NaN stays the worst
    }
  }
  return worst;
}

}  // namespace moebius::testing
