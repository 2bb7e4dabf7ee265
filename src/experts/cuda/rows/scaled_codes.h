// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows in nvfp4 and mx formats are stored as code times block scale, which bf16 holds exactly.  One
// kernel finds their scales and stores them, and may activate the rows first.
#pragma once

#include <optional>

#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/rows/coded_rows.h"
#include "experts/cuda/rows/row_groups.h"
#include "moebius/experts.h"
#include "moebius/quantize.h"

namespace moebius::cuda {

// input: [M, width], or [M, N] as for activate() where there is an activation.  out is as
// RowCoder::take makes it.  Its scales have nvfp4's global scale, [1] or [G], unless rows have
// their own. REQUIRES: takes_scaled_codes(), and an input that allows 16-byte loads.
void put_scaled_codes(const QuantizeSpec& spec,
                      const std::optional<ActivationSpec>& activation,
                      const RowGroups& rows,
                      const Tensor& input,
                      const RowOperand& out,
                      const Stream& stream);

}  // namespace moebius::cuda
