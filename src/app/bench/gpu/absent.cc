// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// bench.h and peak.h in a build without CUDA.
#include "app/bench/gpu/bench.h"
#include "app/bench/gpu/peak.h"
#include "moebius/device.h"
#include "moebius/error.h"

namespace moebius::bench {

int run_gpu_dispatch_bench(const app::BenchOptions&) {
  expect_usable(Device::cuda(0));
  throw Unsupported("built without CUDA");
}

int run_gpu_layer_bench(const app::BenchOptions& options) {
  return run_gpu_dispatch_bench(options);
}

int run_gpu_experts_bench(const app::BenchOptions& options) {
  return run_gpu_dispatch_bench(options);
}

// No stream of a GPU can be made.
ComputePeak gpu_compute_peak(Operand, const Stream&) {
  throw Unsupported("built without CUDA");
}
double gpu_read_gb_per_s(const Stream&) {
  throw Unsupported("built without CUDA");
}

}  // namespace moebius::bench
