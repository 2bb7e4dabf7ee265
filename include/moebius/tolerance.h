// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tolerance: how far a layer's output may be from the float64 reference, and how that is measured.
// One table, shared by `moebius run --check` and the tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "moebius/quant_config.h"
#include "moebius/tensor.h"

namespace moebius {

// |actual - expected| / |expected| in the 2-norm over all elements added; 0 when they are equal,
// infinity when either holds NaN or infinity or only `expected` is zero.
class RelativeError {
 public:
  void add(float actual, float expected) {
    const double difference = static_cast<double>(actual) - static_cast<double>(expected);
    difference_ += difference * difference;
    expected_ += static_cast<double>(expected) * static_cast<double>(expected);
  }
  double value() const {
    if (difference_ == 0) {
      return 0;
    }
    const double ratio = std::sqrt(difference_ / expected_);
    return std::isfinite(ratio) ? ratio : std::numeric_limits<double>::infinity();
  }

 private:
  double difference_ = 0;
  double expected_ = 0;
};

// Throws InvalidArgument when the shapes differ.
inline double relative_error(const Tensor& actual, const Tensor& expected) {
  expect_shape(actual, expected.shape(), "the tensor compared");
  RelativeError error;
  const int64_t n = expected.numel();
  for (int64_t i = 0; i < n; ++i) {
    error.add(get_float(actual, i), get_float(expected, i));
  }
  return error.value();
}

// Bound on relative_error() against the same weights with unquantized activations in float64.  What
// the activations are rounded to decides; a format's own rounding error is about 2^-(mantissa + 2)
// of a value, once before each GEMM, and block scales add to it.
inline double layer_tolerance(const QuantConfig& quant) {
  if (!quant.a1.format) {
    return 1e-2;  // bf16 or f16 between the GEMMs
  }
  switch (*quant.a1.format) {
    case QuantFormat::kFp8:
    case QuantFormat::kInt8:
    case QuantFormat::kMxfp8:
    case QuantFormat::kMxfp6E2M3:
      return 6e-2;
    case QuantFormat::kMxfp6E3M2:
      return 1.2e-1;
    case QuantFormat::kInt4:
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      return 2.5e-1;
  }
  return 1e-2;
}

}  // namespace moebius
