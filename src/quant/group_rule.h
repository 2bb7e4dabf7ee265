// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Scale rules: from the range of a group's elements to its scale and to how they are encoded.
// docs/formats.md tells the rule of each format and where it comes from.
#pragma once

#include <cstdint>

#include "moebius/quantize.h"
#include "quant/row_kernels.h"

namespace moebius::quant {

Code code_of(QuantFormat format);

// The scale of a whole tensor: fp8 and int8 per tensor, and nvfp4's global scale.
float tensor_scale(QuantFormat format, float absmax);

struct GroupCode {
  float factor;             // Encode's f
  float zero_point = 0.0f;  // int4
  float scale = 0.0f;       // as stored in f32; unused with scale_code
  uint8_t scale_code = 0;   // as stored in e8m0 (mx) or e4m3 (nvfp4)
};

Encode encode_of(const QuantizeSpec& spec);
// tensor_scale: the result of the function above where that one is used, else ignored.
GroupCode group_code(const QuantizeSpec& spec, const Range& range, float tensor_scale);

}  // namespace moebius::quant
