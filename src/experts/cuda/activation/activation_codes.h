// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The activation and the quantization of its rows in one pass, with the bits of activate() followed
// by RowCoder::encode.
#pragma once

#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/rows/coded_rows.h"
#include "experts/cuda/rows/given_scales.h"
#include "moebius/experts.h"
#include "moebius/quantize.h"

namespace moebius::cuda {

// Rows are activated and then quantized.  `given` scales are of rows with one scale each.
struct CodedActivation {
  ActivationSpec activation;
  QuantizeSpec spec;
  GivenScales given = {};
};

// input [M, N] is as for activate(), out as RowCoder::take makes it.
// REQUIRES: can_activate_to_codes().
void activate_to_codes(const CodedActivation& coded,
                       const RowGroups& rows,
                       const Tensor& input,
                       const RowOperand& out,
                       const Stream& stream);

}  // namespace moebius::cuda
