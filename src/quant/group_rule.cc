// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "quant/group_rule.h"

namespace moebius::quant {

Code code_of(QuantFormat format) {
  switch (format) {
    case QuantFormat::kFp8:
    case QuantFormat::kMxfp8:
      return Code::kE4M3;
    case QuantFormat::kInt8:
      return Code::kI8;
    case QuantFormat::kInt4:
      return Code::kU4;
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      return Code::kE2M1;
    case QuantFormat::kMxfp6E3M2:
      return Code::kE3M2;
    case QuantFormat::kMxfp6E2M3:
      return Code::kE2M3;
  }
  return Code::kE4M3;
}

Encode encode_of(const QuantizeSpec& spec) {
  switch (spec.format) {
    case QuantFormat::kFp8:
      return spec.group.is_per_tensor() ? Encode::kE4M3Multiply : Encode::kE4M3Divide;
    case QuantFormat::kInt8:
      if (spec.group.is_per_tensor()) {
        return Encode::kI8NearestDivide;
      }
      return spec.group.is_per_token() ? Encode::kI8AwayMultiply : Encode::kI8TruncateDivide;
    case QuantFormat::kInt4:
      return Encode::kU4Divide;
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      return Encode::kE2M1Multiply;
    case QuantFormat::kMxfp6E3M2:
      return Encode::kE3M2Multiply;
    case QuantFormat::kMxfp6E2M3:
      return Encode::kE2M3Multiply;
    case QuantFormat::kMxfp8:
      return Encode::kE4M3Overflow;
  }
  return Encode::kE4M3Multiply;
}

}  // namespace moebius::quant
