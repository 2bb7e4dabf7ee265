// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/bench/experts_call.h"
#include "app/bench/gpu/experts_bench.h"
#include "app/bench/probes.h"
#include "app/run/layer_cost.h"
#include "app/run/random_tensor.h"
#include "layer/layer_parts.h"
#include "moebius/error.h"
#include "moebius/graph.h"
#include "moebius/tolerance.h"
#include "problems/random_layer.h"

namespace moebius::bench {

namespace {

using app::Value;

constexpr int64_t kCheckedTokens = 8;

// The experts and tokens that one of several ranks has where routing is even.
struct ApplyProblem {
  const char* preset;
  int64_t num_experts;
  int64_t num_tokens;
};
constexpr ApplyProblem kProblems[] = {
    {"deepseek-v3", 32, 4096},    // 1024 rows per expert
    {"deepseek-v3", 32, 128},     // 32
    {"deepseek-v3", 32, 16},      // 4
    {"deepseek-v3", 32, 1},       // 1 in each of eight
    {"qwen3-30b-a3b", 16, 4096},  // 2048
};
constexpr const char* kSchemes[] = {"none",       "fp8_w8a8",   "fp8_w8a8_channel", "int8_w8a8",
                                    "int8_w8a16", "int4_w4a16", "mxfp4_w4a16",      "nvfp4"};

// Makes an input in which each token draws its experts, all of which are equally likely.
ExpertsInput make_input(const ExpertsDesc& desc, int64_t num_tokens) {
  ExpertsInput input;
  input.x = app::random_normal({num_tokens, desc.hidden}, desc.in_dtype, 5);
  input.topk_ids = Tensor::empty({num_tokens, desc.topk}, DType::kI32);
  input.topk_weights = Tensor::empty({num_tokens, desc.topk}, DType::kF32);
  std::fill_n(input.topk_weights.data<float>(), input.topk_weights.numel(),
              1.0f / static_cast<float>(desc.topk));
  std::mt19937 random(11);
  std::vector<int32_t> experts(static_cast<size_t>(desc.num_experts));
  std::iota(experts.begin(), experts.end(), 0);
  for (int64_t t = 0; t < num_tokens; ++t) {
    std::shuffle(experts.begin(), experts.end(), random);
    std::copy_n(experts.begin(), desc.topk, input.topk_ids.data<int32_t>() + t * desc.topk);
  }
  return input;
}

// The number of experts that have rows.
int64_t drawn_experts(const ExpertsInput& input) {
  const auto* ids = input.topk_ids.data<int32_t>();
  return static_cast<int64_t>(std::set<int32_t>(ids, ids + input.topk_ids.numel()).size());
}

// Takes the rows of the tokens that are compared out of rows [T, n].
Tensor probes_of(const Tensor& rows) {
  const Tensor probes = Tensor::empty({kCheckedTokens, rows.dim(1)}, rows.dtype());
  for (int64_t i = 0; i < kCheckedTokens; ++i) {
    const Tensor row = rows[probe_row(i, kCheckedTokens, rows.dim(0))];
    std::memcpy(probes[i].raw(), row.raw(), static_cast<size_t>(row.nbytes()));
  }
  return probes;
}

// Returns the sums of these tokens: f32 [kCheckedTokens, H], computed on the CPU in float64 from
// unquantized activations.
Tensor expected_of(const MoeLayerWeights& layer, const ExpertsInput& input) {
  const Stream stream = Stream::cpu();
  MoeLayerOptions oracle;
  oracle.precision = Precision::kF64;
  ExpertsInput probes = input;
  probes.x = convert(probes_of(input.x), DType::kF32);
  probes.topk_ids = probes_of(input.topk_ids);
  probes.topk_weights = probes_of(input.topk_weights);
  oracle.weight_memory = WeightMemory::kLent;
  const ExpertsCall call(make_experts(routed_desc(layer, oracle), layer.experts, stream, "ref"),
                         probes, stream);
  call.apply();
  return call.output();
}

void run_problem(const ApplyProblem& p,
                 const char* scheme,
                 const CaseSetup& setup,
                 const ColdGpu& gpu) {
  const std::string name =
      fmt::format("apply/{}_e{}_t{}/{}", p.preset, p.num_experts, p.num_tokens, scheme);
  if (!setup.wants(name, kImpl)) {
    return;
  }
  const MoeLayerWeights layer =
      RandomLayers(p.preset, scheme, Stream::cpu()).make(0, p.num_experts);
  const ExpertsDesc desc = routed_desc(layer, {});
  const ExpertsInput input = make_input(desc, p.num_tokens);
  std::unique_ptr<Experts> experts;
  try {
    experts = make_experts(desc, layer.experts, gpu.stream(), kImpl);
  } catch (const Unsupported& error) {
    Case c;
    c.problem = name;
    c.impl = kImpl;
    c.refusal = error.what();
    setup.visit(c);
    return;
  }
  ExpertsInput there = input;
  there.x = gpu.take(input.x);
  there.topk_ids = gpu.take(input.topk_ids);
  there.topk_weights = gpu.take(input.topk_weights);
  const ExpertsCall call(std::move(experts), there, gpu.stream());
  call.apply();
  call.apply();
  gpu.stream().synchronize();
  const Graph graph(gpu.stream(), [&] { call.apply(); });
  Case c = cold_case(
      name, kImpl, call.rows(), [&] { graph.launch(); }, gpu);
  c.difference = [&] {
    return probe_difference(to_device(call.rows(), Device::cpu(), gpu.stream()),
                            expected_of(layer, input), layer_tolerance(layer.experts.quant));
  };
  c.metrics = [&](double seconds) {
    const app::LayerCost cost = app::layer_cost(layer);
    const auto rows = static_cast<double>(p.num_tokens * layer.config.experts_per_token);
    const int64_t bytes = drawn_experts(input) * cost.expert_bytes;
    return std::vector<Value>{rows * static_cast<double>(cost.flops_per_row) / seconds * 1e-9,
                              static_cast<double>(bytes) / seconds * 1e-9, Value()};
  };
  setup.visit(c);
}

}  // namespace

void run_gpu_apply_cases(const CaseSetup& setup, const ColdGpu& gpu) {
  for (const ApplyProblem& p : kProblems) {
    for (const char* scheme : kSchemes) {
      run_problem(p, scheme, setup, gpu);
    }
  }
}

}  // namespace moebius::bench
