// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `moebius bench STAGE --device cuda`; defined only in a build with CUDA.
#pragma once

#include "app/options.h"

namespace moebius::bench {

// Each function returns the exit code.

// Dispatch and combine among GPUs, with a thread per rank.  Every row and sum is compared with the
// one that follows from the inputs of all ranks.  Then the GPUs are timed, from a barrier between
// them until the slowest has finished.
// Throws Unsupported on a machine without GPUs, and for more ranks than these GPUs can have.
int run_gpu_dispatch_bench(const app::BenchOptions& options);

// A whole layer of a preset, with its experts distributed over the GPUs' ranks.  With few tokens
// per rank rows travel by low latency and calls are replays of a CUDA graph, with many rows travel
// by high throughput.  A few tokens of every rank are compared with the float64 reference, and the
// last call is compared bit by bit with the first.
int run_gpu_layer_bench(const app::BenchOptions& options);

// The experts of one rank on one GPU: their parts and all of them, with a cold L2 cache.
int run_gpu_experts_bench(const app::BenchOptions& options);

}  // namespace moebius::bench
