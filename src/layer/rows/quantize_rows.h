// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Quantizes rows on the rank that has them, as the experts' QuantDesc says.
#pragma once

#include <cstdint>

#include "moebius/quant_config.h"
#include "moebius/quantize.h"
#include "moebius/workspace.h"

namespace moebius {

// Shapes and dtypes of quantized values and their scales, as quantize() makes them.  Where every
// row has a global scale of its own, its bytes follow the row's other scales (see
// num_row_scales()).
struct QuantizedSpecs {
  TensorSpec values;
  TensorSpec scale;
};
QuantizedSpecs quantized_specs(const QuantizeSpec& spec, int64_t rows, int64_t cols);

struct QuantizedRows {
  Tensor values;
  Tensor scale;
};
// How rows are quantized: by the static scale if `desc` has one.
struct RowQuant {
  const QuantizeSpec& spec;
  const QuantDesc& desc;
};
// Quantizes x [rows, H] into `out`, which has the shapes of quantized_specs.
void quantize_rows(const Tensor& x,
                   const RowQuant& how,
                   const QuantizedRows& out,
                   const Stream& stream);

// The same for batched rows.  They are quantized expert by expert, so that a scale of a whole
// tensor does not depend on rows that are not in use.  x [L, max_rows, H]; counts i32 [L]; `out`
// has the shapes of batched_quantized_specs.
QuantizedSpecs batched_quantized_specs(const QuantizeSpec& spec, const Shape& x);
void quantize_batched_rows(const Tensor& x,
                           const Tensor& counts,
                           const RowQuant& how,
                           const QuantizedRows& out,
                           const Stream& stream);

}  // namespace moebius
