// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How far results of GEMMs may differ in the metric of moebius/tolerance.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "moebius/device.h"
#include "moebius/quant_config.h"
#include "moebius/tolerance.h"

namespace moebius {

// The largest distance between neighbouring values of a dtype, relative to their size.
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
// The same for the codes of activations of typical size.  Steps of int8 are equal everywhere: they
// are 1/127 of the largest element, which is about ten times the typical product of gate and up in
// a token or block.  (Over all rows it may be many times more, see int8_tensor_codes.)  e2m3 and
// e2m1 have only two exponents, below which steps do not shrink: those of e2m1 are half of a value
// at the most above them, but 5/8 on average over all values.
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

// The share of codes of activations that may differ by a step between two implementations.
inline constexpr double kDifferingCodes = 1e-3;
// The same where one of them multiplies codes on fp8 tensor cores.  These drop what is below 2^-13
// of the largest product, which changes sums by 1.2e-4 of their size.  By a model of them whole
// experts then differ by up to 1.4 times the tolerance with kDifferingCodes.
inline constexpr double kDifferingCodesOfFp8Cores = 1e-2;
// The same where a row or a tensor has one scale.  Where a sum's error changes the rounding of its
// largest element, that scale changes by up to 2^-7, and one code in eight by a step.
inline constexpr double kDifferingCodesOfWideScales = 1.0 / 8;
inline double differing_codes(DeviceType device,
                              DType dtype,
                              std::optional<QuantFormat> activation,
                              std::optional<QuantFormat> weight,
                              bool has_blocks) {
  const bool has_fp8_cores = device == DeviceType::kCuda && dtype != DType::kF32 &&
                             activation == QuantFormat::kFp8 && weight == QuantFormat::kFp8;
  if (!has_fp8_cores) {
    return kDifferingCodes;
  }
  return has_blocks ? kDifferingCodesOfFp8Cores : kDifferingCodesOfWideScales;
}

// The tolerance between two implementations of the same model of rounding.  They sum in different
// orders, so f32 sums over k differ by about sqrt(k) steps of f32.  Rounded to a narrower dtype,
// most become equal again; at most a tenth differ by a step, and that three times (GEMM1,
// activation, output).  Where activations are quantized, some codes differ by a step.
inline double tolerance(DType dtype,
                        std::optional<QuantFormat> activation,
                        int64_t k,
                        double differing_codes = kDifferingCodes) {
  const double sums = 2 * std::sqrt(static_cast<double>(k)) * 0x1p-23;
  const double rounding =
      dtype == DType::kF32 ? 0.0 : std::sqrt(0.1 * 3) * relative_step(dtype) / 2;
  const double codes =
      activation ? std::sqrt(differing_codes) * relative_step(*activation) / 2 : 0.0;
  return sums + rounding + codes;
}

// The tolerance between the model of rounding and float64 with unquantized activations.  Each
// rounding changes an element by up to half a step, uniformly, which is step / sqrt(12).  There are
// four: of GEMM1, two of the activation, and of the output.  Both quantizations add as much with
// the step of their codes, unless `codes` is their share.
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
