// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows quantized where they are, as the experts' QuantDesc says.
#pragma once

#include <cstdint>

#include "moebius/quant_config.h"
#include "moebius/quantize.h"
#include "moebius/workspace.h"

namespace moebius {

// Values and scales of quantized rows, as quantize() makes them.
struct QuantizedSpecs {
  TensorSpec values;
  TensorSpec scale;
};
QuantizedSpecs quantized_specs(const QuantizeSpec& spec, int64_t rows, int64_t cols);

struct QuantizedRows {
  Tensor values;
  Tensor scale;
};
// x [rows, H] -> out (shapes of quantized_specs) by the static scale of `desc`, where it has one.
void quantize_rows(const Tensor& x,
                   const QuantizeSpec& spec,
                   const QuantDesc& desc,
                   const QuantizedRows& out,
                   const Stream& stream);

// The same for batched rows, expert by expert, so that a scale of a whole tensor sees no row that
// is not in use.  x [L, max_rows, H]; counts i32 [L]; out as batched_quantized_specs.
QuantizedSpecs batched_quantized_specs(const QuantizeSpec& spec, const Shape& x);
void quantize_batched_rows(const Tensor& x,
                           const Tensor& counts,
                           const QuantizeSpec& spec,
                           const QuantDesc& desc,
                           const QuantizedRows& out,
                           const Stream& stream);

}  // namespace moebius
