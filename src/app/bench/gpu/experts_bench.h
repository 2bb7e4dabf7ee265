// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The parts of `moebius bench experts --device cuda`.  The columns of a case are operations per
// second, the rate of weights, the rate of the activation's operands, and the least time that the
// GPU's peaks allow as a share of the time that was taken; one that a case does not have is null.
#pragma once

#include <functional>
#include <string_view>

#include "app/bench/cases.h"
#include "problems/gpu_cold.h"

namespace moebius::bench {

inline constexpr std::string_view kImpl = "cuda";  // the implementation of all these cases

// A case whose `call` poisons `out` and then does the work, and whose time is that of the work with
// a cold L2 cache.  `gpu` must outlive it.
Case cold_case(std::string_view problem,
               std::string_view impl,
               const Tensor& out,
               const std::function<void()>& work,
               const ColdGpu& gpu);

// Grouped GEMMs of real models.  Their groups are even, uneven (Zipf) or in the batched format, and
// where they are even cuBLASLt is timed, too.  8 columns of every row are compared with f64 sums.
void run_gpu_gemm_cases(const CaseSetup& setup, const ColdGpu& gpu);

// The activation between the GEMMs, alone and together with the quantization of its rows.
void run_gpu_activation_cases(const CaseSetup& setup, const ColdGpu& gpu);

// All of the experts of one rank, as a CUDA graph.  A few tokens, spread from the first to the
// last, are compared with the float64 reference.
void run_gpu_apply_cases(const CaseSetup& setup, const ColdGpu& gpu);

}  // namespace moebius::bench
