// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Weights in codes as bf16, for GEMMs that take no codes.
#pragma once

#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/gemm/grouped_gemm.h"

namespace moebius::cuda {

// Groups [first, first + out.b.dim(0)) of gemm.w, those with rows only, to out's b, b_scale (of
// blocks) and column_scale.  Scales of gemm.a that are not of rows are in the latter.
// REQUIRES: can_decode().
void decode_weights(const ExpertGemm& gemm,
                    int64_t first,
                    const GroupedGemm& out,
                    const Stream& stream);

}  // namespace moebius::cuda
