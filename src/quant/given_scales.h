// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows of activations whose scales a call brings (QuantDesc::calls_bring_scales), on CPUs: codes
// and values are as quantize() and quantize_dequantize() would give them, had they taken the same
// scales from the rows.
#pragma once

#include "moebius/quantize.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::quant {

// Sets codes [M, K] from x [M, K] f32, bf16 or f16 and its scales [M].
// REQUIRES: spec is fp8 or int8 per token; the tensors are on the CPU.
void quantize_given(const Tensor& x,
                    const QuantizeSpec& spec,
                    const float* scales,
                    const Tensor& codes,
                    const Stream& stream);

// Sets out [M, K] f32, bf16 or f16, which may be x, to the values of those codes.  REQUIRES: as
// above.
void quantize_dequantize_given(const Tensor& x,
                               const QuantizeSpec& spec,
                               const float* scales,
                               const Tensor& out,
                               const Stream& stream);

}  // namespace moebius::quant
