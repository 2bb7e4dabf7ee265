// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Random operands of GEMMs.  Equal seeds give equal operands.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>

#include "moebius/tensor.h"

namespace moebius::testing {

inline Tensor random_uniform(
    const Shape& shape, DType dtype, uint32_t seed, float low, float high) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(low, high);
  Tensor tensor = Tensor::empty(shape, dtype);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    set_float(tensor, i, values(random));
  }
  return tensor;
}

// Random bytes from low to high, both included.
inline Tensor random_bytes(const Shape& shape, DType dtype, int low, int high, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> bytes(low, high);
  Tensor tensor = Tensor::empty(shape, dtype);
  std::generate_n(reinterpret_cast<uint8_t*>(tensor.raw()), tensor.nbytes(),
                  [&] { return static_cast<uint8_t>(bytes(random)); });
  return tensor;
}

}  // namespace moebius::testing
