// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The activation and the quantization of its rows in one pass, bit for bit activate() followed by
// RowCoder::encode.
#pragma once

#include "experts/cuda/gemm/expert_gemm.h"
#include "moebius/experts.h"
#include "moebius/quantize.h"

namespace moebius::cuda {

// Scales of fp8 or int8 over groups of a row or all of it, of widths that vectors of eight fit.
bool can_activate_to_codes(const QuantizeSpec& spec, int64_t width);

// REQUIRES: can_activate_to_codes.  input [M, N] as activate(); out as RowCoder::take.
void activate_to_codes(const ActivationSpec& activation,
                       const QuantizeSpec& spec,
                       const RowGroups& rows,
                       const Tensor& input,
                       const RowOperand& out,
                       const Stream& stream);

}  // namespace moebius::cuda
