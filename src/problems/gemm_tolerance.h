// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How far results of GEMMs may lie apart in the metric of moebius/tolerance.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "moebius/quant_config.h"
#include "moebius/tolerance.h"

namespace moebius {

// Distance between neighbours of a dtype, relative to their size, at its widest.
inline double relative_step(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x1p-7;
    case DType::kF16:
      return 0x1p-10;
    default:
      return 0x1p-23;
  }
}
// The same for the codes of activations of typical size.  int8 steps are equal everywhere: 1/127 of
// the largest element, which is about ten times the typical product of gate and up of a token or
// block (of all rows it may be many times that, see int8_tensor_codes).  e2m3 and e2m1
// have two exponents only; below them the steps do not shrink, so that of e2m1 (half at its widest)
// is 5/8 on average.
inline double relative_step(QuantFormat format) {
  switch (format) {
    case QuantFormat::kInt8:
      return 10.0 / 127.0;
    case QuantFormat::kFp8:
    case QuantFormat::kMxfp8:
      return 0x1p-3;
    case QuantFormat::kMxfp6E2M3:
    case QuantFormat::kMxfp6E3M2:
      return 0x1p-2;
    default:
      return 0.625;
  }
}

// Two implementations of the same model of rounding.  They sum in different orders, so f32 sums
// over k differ by about sqrt(k) steps of f32.  Rounded to a narrower dtype, most become equal
// again; a tenth at most lands one step apart, three times in a row (GEMM1, activation, output).
// Where activations are quantized, one in a thousand codes lands one step apart.
inline double tolerance(DType dtype, std::optional<QuantFormat> activation, int64_t k) {
  const double sums = 2 * std::sqrt(static_cast<double>(k)) * 0x1p-23;
  const double rounding =
      dtype == DType::kF32 ? 0.0 : std::sqrt(0.1 * 3) * relative_step(dtype) / 2;
  const double codes = activation ? std::sqrt(1e-3) * relative_step(*activation) / 2 : 0.0;
  return sums + rounding + codes;
}

// The model of rounding against float64 with unquantized activations.  Every element is off by up
// to half a step at each rounding, uniformly: step / sqrt(12) each for GEMM1's, the activation's
// two and the output's, and for both quantizations, unless `codes` says what these make.
inline double model_tolerance(DType dtype,
                              std::optional<QuantFormat> activation,
                              int64_t k,
                              std::optional<double> codes = std::nullopt) {
  const double sums = 2 * std::sqrt(static_cast<double>(k)) * 0x1p-23;
  const double rounding = std::sqrt(4.0 / 12.0) * relative_step(dtype);
  const double of_steps = activation ? std::sqrt(2.0 / 12.0) * relative_step(*activation) : 0.0;
  return sums + rounding + codes.value_or(of_steps);
}

}  // namespace moebius
