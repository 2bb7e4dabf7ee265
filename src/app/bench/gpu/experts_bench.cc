// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/bench/gpu/experts_bench.h"

#include <string>
#include <vector>

#include "app/bench/benches.h"
#include "app/bench/harness.h"
#include "core/cuda/runtime.h"

namespace moebius::bench {

Case cold_case(std::string_view problem,
               std::string_view impl,
               const Tensor& out,
               const std::function<void()>& work,
               const ColdGpu& gpu) {
  Case c;
  c.problem = problem;
  c.impl = impl;
  c.call = [&gpu, out, work] {
    gpu.poison(out);
    work();
  };
  c.timed_call = [&gpu, work] { return gpu.seconds(work); };
  return c;
}

int run_gpu_experts_bench(const app::BenchOptions& options) {
  static const std::vector<app::Column> columns = {
      {"gflops", "products", app::Unit::kGflops},
      {"weight_gb_per_s", "weights", app::Unit::kGigabytesPerSecond},
      {"gb_per_s", "rows", app::Unit::kGigabytesPerSecond},
      {"of_floor", "of floor", app::Unit::kPercent},
  };
  expect_usable(Device::cuda(0));
  Harness harness(options, columns);
  harness.fact("device", "cuda");
  harness.fact("gpu", cuda_device_info(0).name);
  harness.fact("l2_lines", options.l2_lines);
  const ColdGpu gpu(l2_lines_of(options.l2_lines));
  CaseSetup setup;
  setup.is_small = false;
  setup.stream = gpu.stream();
  setup.problem = options.problem;
  setup.impl = options.impl;
  setup.visit = [&](const Case& c) {
    Case timed = c;
    timed.num_calls = options.iterations;
    harness.run(timed);
  };
  run_gpu_gemm_cases(setup, gpu);
  run_gpu_activation_cases(setup, gpu);
  run_gpu_apply_cases(setup, gpu);
  return harness.finish();
}

}  // namespace moebius::bench
