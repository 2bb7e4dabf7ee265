// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The parts of `moebius bench experts --device cuda`.  Columns of a case: operations per second,
// rate of weights, rate of the activation's operands; null where a case has none.
#pragma once

#include "app/bench/cases.h"
#include "problems/gpu_cold.h"

namespace moebius::bench {

// Grouped GEMMs of real models, groups even, uneven (Zipf) or in a batched room, beside cuBLASLt
// where groups are even.  8 columns of every row are compared with f64 sums.
void run_gpu_gemm_cases(const CaseSetup& setup, const ColdGpu& gpu);

// What lies between the GEMMs: the activation, alone and with the quantization of its rows.
void run_gpu_activation_cases(const CaseSetup& setup, const ColdGpu& gpu);

// All of the experts of one rank, as a CUDA graph.  Tokens from first to last are compared with
// float64.
void run_gpu_apply_cases(const CaseSetup& setup, const ColdGpu& gpu);

}  // namespace moebius::bench
