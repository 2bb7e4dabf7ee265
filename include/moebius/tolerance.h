// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tolerance: how far a layer's output may be from the float64 reference, and how that is measured.
// `moebius run --check` and the tests share this one table.
// Thread-safety: functions without shared state; one thread at a time may use a RelativeError.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "moebius/api.h"
#include "moebius/quant_config.h"
#include "moebius/tensor.h"

namespace moebius MOEBIUS_API {

// |actual - expected| / |expected| in the 2-norm over all elements that were added.  The value is 0
// where both are equal, and infinity where either holds NaN or infinity or only `expected` is zero.
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

// The same of two whole tensors on the CPU.  Throws InvalidArgument where the shapes differ.
inline double relative_error(const Tensor& actual, const Tensor& expected) {
  expect_shape(actual, expected.shape(), "the tensor compared");
  RelativeError error;
  const int64_t n = expected.numel();
  for (int64_t i = 0; i < n; ++i) {
    error.add(get_float(actual, i), get_float(expected, i));
  }
  return error.value();
}

// The bound on relative_error() of a layer against float64 with the same weights and unquantized
// activations.  It depends on the format that activations are rounded to: rounding changes a value
// by about 2^-(mantissa bits + 2) before each of the two GEMMs, and block scales add to that.
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
