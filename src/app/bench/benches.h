// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The benches of `moebius bench` that are no list of cases.  Each returns the exit code.
#pragma once

#include "app/options.h"

namespace moebius::bench {

// A whole layer on one rank (router, experts, reduction), compared with the machine's roofline: no
// call can take less time than its operations take at the peak, nor than reading the weights that
// it touches takes at the read bandwidth.  Both rates are measured in the same run by the same
// threads. Throws InvalidArgument or Unsupported for a preset or scheme that does not exist or
// cannot be used.
int run_layer_bench(const app::BenchOptions& options);

// The following are `moebius bench STAGE --device cuda`, and are defined only in a build with CUDA.

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
