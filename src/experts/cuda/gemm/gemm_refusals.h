// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Says which GEMMs a kernel takes, and why it refuses others, whatever may pay: choose_gemm() asks.
#pragma once

#include "experts/cuda/gemm/gemm_plan.h"

namespace moebius::cuda {

// Columns of fp8's scales by blocks, and of the blocks that kSm90 computes.
inline constexpr int64_t kSm90Block = 128;

// Why a kernel refuses a GEMM; nullptr: it takes it.
using Refusal = const char*;

// `decodes`: the weights are decoded first.
Refusal refusal_of_sm90(const GemmDesc& desc, const CudaDeviceInfo& gpu, bool decodes);
Refusal refusal_of_few_rows(const GemmDesc& desc, const CudaDeviceInfo& gpu);
// Says why kThin refuses weights that kSm90 takes as they are.
Refusal refusal_of_thin(const GemmDesc& desc);
// Says why kThin refuses codes that kFewRows takes.
Refusal refusal_of_thin_codes(const GemmDesc& desc);
Refusal refusal_of_mma(const GemmDesc& desc);

bool has_one_scale_per_row(const RowFacts& rows, int64_t k);
bool has_sizes_of_sm90(const WeightFacts& weights, const CudaDeviceInfo& gpu);
// Whether sm90 takes the codes of these weights where rows are fp8 codes, too.
bool has_fp8_columns(const WeightFacts& weights);

}  // namespace moebius::cuda
