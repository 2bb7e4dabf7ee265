// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "app/bench/experts_call.h"
#include "app/bench/gpu/experts_bench.h"
#include "app/bench/machine_peak.h"
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

// Experts of a rank, all of which are equally likely, for calls of some numbers of tokens.
struct Model {
  const char* preset;
  int64_t num_experts;
  std::span<const int64_t> tokens;
};
constexpr int64_t kTokens[] = {1, 16, 128, 1024, 4096};
constexpr int64_t kPrefillTokens[] = {4096};
constexpr Model kModels[] = {
    {"deepseek-v3", 32, kTokens},
    {"qwen3-30b-a3b", 128, kTokens},
    {"qwen3-30b-a3b", 16, kPrefillTokens},  // 2048 rows per expert
};

// Weights of a scheme, with its activations or with plain ones.
struct ApplyScheme {
  const char* name;
  const char* weights;  // see RandomLayers
  bool plain_activations = false;
  bool is_f16 = false;
};
constexpr ApplyScheme kSchemes[] = {
    {"none", "none"},
    {"none_f16", "none", false, true},
    {"fp8_w8a8", "fp8_w8a8"},
    {"fp8_w8a8_channel", "fp8_w8a8_channel"},
    {"fp8_w8a8_tensor", "fp8_w8a8_tensor"},
    {"int8_w8a8", "int8_w8a8"},
    {"fp8_w8a16", "fp8_w8a8", true},
    {"int8_w8a16", "int8_w8a16"},
    {"int4_w4a16", "int4_w4a16"},
    {"mxfp4_w4a16", "mxfp4_w4a16"},
    {"mxfp8_w8a16", "mxfp8", true},
    {"mxfp4", "mxfp4"},
    {"mxfp6_e3m2", "mxfp6_e3m2"},
    {"mxfp6_e2m3", "mxfp6_e2m3"},
    {"mxfp8", "mxfp8"},
    {"nvfp4", "nvfp4"},
    {"int8_w8a16_f16", "int8_w8a16", false, true},
    {"int4_w4a16_f16", "int4_w4a16", false, true},
    {"mxfp4_w4a16_f16", "mxfp4_w4a16", false, true},
    {"nvfp4_w4a16_f16", "nvfp4", true, true},
    {"nvfp4_f16", "nvfp4", false, true},
};

MoeLayerWeights make_layer(const Model& model, const ApplyScheme& scheme) {
  MoeLayerWeights layer =
      RandomLayers(model.preset, scheme.weights, Stream::cpu()).make(0, model.num_experts);
  if (scheme.plain_activations) {
    layer.experts.quant.a1 = layer.experts.quant.a2 = {};
    layer.experts.quant.validate();
  }
  if (scheme.is_f16) {
    layer.config.in_dtype = DType::kF16;
    for (Tensor* weights : {&layer.experts.w1, &layer.experts.w2}) {
      if (weights->dtype() == DType::kBF16) {  // and not codes
        *weights = convert(*weights, DType::kF16);
      }
    }
  }
  return layer;
}

// Says how long a GPU takes at least to read each chosen expert once, or to multiply with its
// tensor cores.  It measures their rates when it is first asked for them.
class Floor {
 public:
  explicit Floor(const Stream& stream) : stream_(stream) {}

  double seconds(const app::LayerCost& cost, double flops, double bytes) {
    const Operand operand = cost.multiplies_fp8    ? Operand::kFp8
                            : cost.multiplies_int8 ? Operand::kInt8
                                                   : Operand::kBF16;
    double& gflops = gflops_[operand];
    if (gflops == 0) {
      gflops = compute_peak(operand, stream_).gflops;
    }
    if (read_gb_per_s_ == 0) {
      read_gb_per_s_ = read_gb_per_s(stream_);
    }
    return std::max(flops / gflops, bytes / read_gb_per_s_) * 1e-9;
  }

 private:
  Stream stream_;
  std::map<Operand, double> gflops_;
  double read_gb_per_s_ = 0;
};

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

// The experts of one model in one scheme.
class ApplyCases {
 public:
  ApplyCases(const Model& model, const ApplyScheme& scheme, const CaseSetup& setup)
      : model_(model), scheme_(scheme), setup_(setup) {}

  void run(const ColdGpu& gpu, Floor& floor) {
    for (const int64_t num_tokens : model_.tokens) {
      const std::string name = fmt::format("apply/{}_e{}_t{}/{}", model_.preset, model_.num_experts,
                                           num_tokens, scheme_.name);
      if (setup_.wants(name, kImpl)) {
        run_tokens(name, num_tokens, gpu, floor);
      }
    }
  }

 private:
  // Makes weights and experts before the first case that is asked for.
  void make_experts_once(const Stream& stream) {
    if (layer_) {
      return;
    }
    layer_ = make_layer(model_, scheme_);
    try {
      experts_ = make_experts(routed_desc(*layer_, {}), layer_->experts, stream, kImpl);
    } catch (const Unsupported& error) {
      refusal_ = error.what();
    }
  }

  void run_tokens(const std::string& name, int64_t num_tokens, const ColdGpu& gpu, Floor& floor) {
    make_experts_once(gpu.stream());
    if (!refusal_.empty()) {
      Case c;
      c.problem = name;
      c.impl = kImpl;
      c.refusal = refusal_;
      setup_.visit(c);
      return;
    }
    const ExpertsInput input = make_input(routed_desc(*layer_, {}), num_tokens);
    ExpertsInput there = input;
    there.x = gpu.take(input.x);
    there.topk_ids = gpu.take(input.topk_ids);
    there.topk_weights = gpu.take(input.topk_weights);
    const ExpertsCall call(experts_, there, gpu.stream());
    call.apply();
    call.apply();
    gpu.stream().synchronize();
    const Graph graph(gpu.stream(), [&] { call.apply(); });
    Case c = cold_case(
        name, kImpl, call.rows(), [&] { graph.launch(); }, gpu);
    c.difference = [&] {
      return probe_difference(to_device(call.rows(), Device::cpu(), gpu.stream()),
                              expected_of(*layer_, input), layer_tolerance(layer_->experts.quant));
    };
    c.metrics = [&](double seconds) {
      const app::LayerCost cost = app::layer_cost(*layer_);
      const auto rows = static_cast<double>(input.topk_ids.numel());
      const double flops = rows * static_cast<double>(cost.flops_per_row);
      const auto bytes = static_cast<double>(drawn_experts(input) * cost.expert_bytes);
      return std::vector<Value>{flops / seconds * 1e-9, bytes / seconds * 1e-9, Value(),
                                floor.seconds(cost, flops, bytes) / seconds};
    };
    setup_.visit(c);
  }

  const Model& model_;
  const ApplyScheme& scheme_;
  const CaseSetup& setup_;
  std::optional<MoeLayerWeights> layer_;
  std::shared_ptr<Experts> experts_;
  std::string refusal_;
};

}  // namespace

void run_gpu_apply_cases(const CaseSetup& setup, const ColdGpu& gpu) {
  Floor floor(gpu.stream());
  for (const Model& model : kModels) {
    for (const ApplyScheme& scheme : kSchemes) {
      ApplyCases(model, scheme, setup).run(gpu, floor);
    }
  }
}

}  // namespace moebius::bench
