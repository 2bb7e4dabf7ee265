// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `moebius bench STAGE --device cuda`; defined only in a build with CUDA.
#pragma once

#include "app/options.h"

namespace moebius::bench {

// Dispatch and combine among GPUs, a rank thread each: every row and sum is compared with what the
// inputs of all ranks make it, then the ranks' GPUs are timed from a barrier of theirs until the
// slowest has finished.  The exit code.
// Throws Unsupported on a machine without GPUs, and for ranks that these GPUs cannot be.
int run_gpu_dispatch_bench(const app::BenchOptions& options);

// A whole layer of a preset over the GPUs, experts distributed over the ranks: few tokens per rank
// go by low latency and a CUDA graph, many by high throughput.  Tokens among those of every rank
// are compared with the float64 reference, and every call with the bits of the first.
int run_gpu_layer_bench(const app::BenchOptions& options);

// The experts of one rank on one GPU, whole and in parts, with a cold L2 cache.
int run_gpu_experts_bench(const app::BenchOptions& options);

}  // namespace moebius::bench
