// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Decodes weights to bf16 or f16, for GEMMs that take no codes.
#pragma once

#include "experts/cuda/gemm/dequant/decode_args.h"
#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/gemm/grouped_gemm.h"

namespace moebius::cuda {

// Gives the arguments by which a kernel decodes gemm.w to out's b, b_scale and column_scale.
// REQUIRES: can_decode().
DecodeArgs decode_args(const ExpertGemm& gemm, const GroupedGemm& out);

// Decodes groups [first, first + out.b.dim(0)) of gemm.w, but only those that have rows, to out's
// b, b_scale (of blocks) and column_scale.  Scales of gemm.a that are not per row go into
// column_scale.
// REQUIRES: can_decode().
void decode_weights(const ExpertGemm& gemm,
                    int64_t first,
                    const GroupedGemm& out,
                    const Stream& stream);

// Decodes the first group that has rows to bf16, where a GEMM with out.decode expects it, and sets
// out.decode_counters to zeros.
void decode_first_group(const ExpertGemm& gemm, const GroupedGemm& out, const Stream& stream);

}  // namespace moebius::cuda
