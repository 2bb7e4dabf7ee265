// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Weights in codes as bf16, for GEMMs that take no codes.
#pragma once

#include "experts/cuda/expert_gemm.h"

namespace moebius::cuda {

// Whether every element is a factor of its column times what bf16 holds exactly (but for its
// subnormals): mx and nvfp4 formats, and codes with one scale per column or more.
bool can_decode_weights(const WeightOperand& w);

// Groups [first, first + out.dim(0)) of gemm.w, those with rows only: out [groups, N, K] bf16, and
// column_scale f32 [groups, N], by which sums are to be multiplied.  The scales of gemm.a, one per
// group or one for all, are in it.
void decode_weights(const ExpertGemm& gemm,
                    int64_t first,
                    const Tensor& out,
                    const Tensor& column_scale,
                    const Stream& stream);

}  // namespace moebius::cuda
