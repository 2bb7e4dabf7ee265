// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/run/random_tensor.h"

#include <cmath>
#include <numbers>

#include "core/splitmix64.h"

namespace moebius::app {

namespace {

// Returns a well mixed number for each counter.
uint64_t mix(uint64_t counter) {
  return splitmix64::number(counter, 0);
}

// Returns a number in (0, 1].
double uniform(uint64_t bits) {
  return static_cast<double>((bits >> 11) + 1) * 0x1.0p-53;
}

}  // namespace

Tensor random_normal(const Shape& shape, DType dtype, uint64_t seed, float deviation) {
  Tensor out = Tensor::empty(shape, dtype);
  const uint64_t start = mix(seed);
  const int64_t n = out.numel();
  // The method of Box and Muller makes two normal numbers of two uniform ones.
  for (int64_t i = 0; i < n; i += 2) {
    const uint64_t counter = start + static_cast<uint64_t>(i);
    const double radius = deviation * std::sqrt(-2.0 * std::log(uniform(mix(counter))));
    const double angle = 2.0 * std::numbers::pi * uniform(mix(counter + 1));
    set_float(out, i, static_cast<float>(radius * std::cos(angle)));
    if (i + 1 < n) {
      set_float(out, i + 1, static_cast<float>(radius * std::sin(angle)));
    }
  }
  return out;
}

}  // namespace moebius::app
