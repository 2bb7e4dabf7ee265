// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "app/bench/benches.h"
#include "app/bench/cases.h"
#include "app/bench/harness.h"
#include "app/commands.h"
#include "app/output_file.h"
#include "core/has_cuda.h"
#include "moebius/device.h"
#include "moebius/error.h"

namespace moebius::app {

int run_subcommand(const BenchOptions& options) {
  expect_writable("--json", options.json);
  const bool on_gpus = options.device == "cuda";
  if (options.ranks > 0 && options.stage != "dispatch" && !(options.stage == "layer" && on_gpus)) {
    throw InvalidArgument(
        fmt::format("--ranks {}: bench {} has no ranks, only bench dispatch, and layer on GPUs",
                    options.ranks, options.stage));
  }
  if (on_gpus && (options.stage == "quant" || options.stage == "router")) {
    throw InvalidArgument(fmt::format(
        "--device cuda: bench {} runs on the CPU, only experts, dispatch and layer run on GPUs",
        options.stage));
  }
  if (options.stage == "layer" && options.preset.empty()) {
    throw InvalidArgument("bench layer needs --preset NAME (moebius info lists them)");
  }
  if (on_gpus) {
    if constexpr (kHasCuda) {
      return options.stage == "experts" ? bench::run_gpu_experts_bench(options)
             : options.stage == "layer" ? bench::run_gpu_layer_bench(options)
                                        : bench::run_gpu_dispatch_bench(options);
    }
    expect_usable(Device::cuda(0));
  }
  if (options.stage == "layer") {
    return bench::run_layer_bench(options);
  }
  const auto stages = bench::stage_cases();
  const auto stage = std::find_if(stages.begin(), stages.end(),
                                  [&](const auto& s) { return s.stage == options.stage; });
  bench::Harness harness(options, stage->columns);
  bench::CaseSetup setup;
  setup.is_small = false;
  setup.stream = Stream::cpu(options.threads);
  setup.problem = options.problem;
  setup.impl = options.impl;
  setup.ranks = options.ranks;
  setup.visit = [&](const bench::Case& c) { harness.run(c); };
  stage->run(setup);
  return harness.finish();
}

}  // namespace moebius::app
