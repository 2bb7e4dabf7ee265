// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tolerance: how far a layer's output may be from the float64 reference, and how that is measured.
// One table, shared by `moebius run --check` and the tests.
#pragma once

#include <cmath>
#include <limits>

#include "moebius/quant_config.h"
#include "moebius/tensor.h"

namespace moebius {

// Norm of (actual - expected) over the norm of expected.  The norm of actual when expected is all
// zero; infinity where either holds NaN or infinity.  Throws InvalidArgument on shapes that differ.
inline double relative_error(const Tensor& actual, const Tensor& expected) {
  expect_shape(actual, expected.shape(), "the tensor compared");
  double difference = 0;
  double norm = 0;
  for (int64_t i = 0; i < expected.numel(); ++i) {
    const double e = get_float(expected, i);
    const double d = get_float(actual, i) - e;
    difference += d * d;
    norm += e * e;
  }
  const double error = std::sqrt(norm > 0 ? difference / norm : difference);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
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
