// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Weights in codes as bf16, for GEMMs that take no codes.
#pragma once

#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/gemm/grouped_gemm.h"

namespace moebius::cuda {

// Whether bf16 holds every element exactly (but for its subnormals), apart from a factor of its
// column or of at least 32 neighbours in it: mx and nvfp4 formats, and others whose scales are
// shared by as many.
bool can_decode_weights(const WeightOperand& w);

// Blocks of K with factors of their own; 0: the factor is the column's.  REQUIRES: can_decode.
int64_t decoded_blocks(const WeightOperand& w);

// Groups [first, first + out.b.dim(0)) of gemm.w, those with rows only, to out's b, b_scale (of
// blocks) and column_scale.  Scales of gemm.a that are not of rows are in the latter.
void decode_weights(const ExpertGemm& gemm,
                    int64_t first,
                    const GroupedGemm& out,
                    const Stream& stream);

}  // namespace moebius::cuda
