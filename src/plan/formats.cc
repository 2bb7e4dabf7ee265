// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/formats.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "checkpoint/load_schemes.h"
#include "checkpoint/model_config.h"
#include "checkpoint/presets.h"
#include "checkpoint/stored_quant.h"
#include "experts/quantized_rows.h"
#include "moebius/all2all.h"
#include "moebius/error.h"

namespace moebius::plan {

namespace {

using checkpoint::LoadScheme;
using checkpoint::ModelConfig;

LayerShape layer_of(const ModelConfig& config, std::string name) {
  const ModelInfo& info = config.info;
  LayerShape layer;
  layer.name = std::move(name);
  layer.routing.num_experts = info.num_experts;
  layer.routing.topk = info.topk;
  layer.routing.num_groups = config.router.num_groups;
  layer.routing.topk_groups = config.router.topk_groups;
  layer.hidden = info.hidden;
  layer.intermediate = info.intermediate;
  layer.shared_intermediate = info.shared_intermediate;
  layer.is_gated = config.activation.gated;
  layer.dtype = info.dtype.value_or(DType::kBF16);
  layer.num_moe_layers = static_cast<int64_t>(info.moe_layers.size());
  return layer;
}

// The scheme's config with the weights of one small expert, since shapes and scales do not matter
// to plans.
QuantConfig small_config(const LoadScheme& scheme, const QuantizeSpec& spec) {
  constexpr int64_t kSize = 128;
  const auto weight = [&](int64_t halves) {
    return checkpoint::allocate_weight(scheme, spec, {1, halves * kSize, kSize}, halves);
  };
  checkpoint::QuantizedWeight w1 = weight(2);
  checkpoint::QuantizedWeight w2 = weight(1);
  for (const Tensor& global : {w1.global_scale, w2.global_scale}) {
    if (global) {
      std::fill_n(global.data<float>(), global.numel(), 1.0f);
    }
  }
  return checkpoint::make_quant_config(scheme, spec, w1, w2);
}

std::string scheme_name(const std::string& name) {
  return name == "fp8"    ? "fp8_w8a8"
         : name == "int8" ? "int8_w8a8"
         : name == "int4" ? "int4_w4a16"
                          : name;
}

}  // namespace

LayerShape layer_of_preset(const std::string& preset) {
  return layer_of(checkpoint::parse_model_config(checkpoint::preset_config(preset), preset),
                  preset);
}

LayerShape layer_of_model(const std::string& directory, checkpoint::WeightScheme* stored) {
  const ModelConfig config = checkpoint::read_model_config(directory);
  if (stored != nullptr) {
    *stored = config.quantization.main();
  }
  return layer_of(config, directory);
}

Formats stored_formats(const checkpoint::WeightScheme& stored, bool quantize_activations) {
  QuantTensors tensors;
  if (stored.has_zero_points) {
    tensors.w1_zero_point = tensors.w2_zero_point = Tensor::zeros({1, 1, 1}, DType::kU8);
  }
  if (stored.activations == checkpoint::ActivationScheme::kNvfp4) {
    tensors.a1_gscale = tensors.a2_gscale = Tensor::zeros({1}, DType::kF32);
  }
  if (stored.activations == checkpoint::ActivationScheme::kPerTensor) {
    tensors.a1_scale = tensors.a2_scale = Tensor::zeros({1}, DType::kF32);
  }
  Formats formats;
  formats.name = checkpoint::computed_as(stored, quantize_activations);
  formats.quant = checkpoint::stored_quant_config(stored, quantize_activations, tensors);
  formats.weights = weight_spec(formats.quant.w1);
  formats.activations = activation_spec(formats.quant.a1);
  return formats;
}

Formats find_formats(const std::string& name, const LayerShape& layer) {
  Formats formats;
  formats.name = scheme_name(name);
  if (name == "none") {
    return formats;
  }
  const LoadScheme& scheme =
      checkpoint::find_load_scheme(formats.name, "auto, none, fp8, int8, int4");
  const QuantizeSpec spec = checkpoint::load_weight_spec(scheme, layer.hidden, layer.intermediate,
                                                         /*is_interleaved=*/false);
  for (const int64_t inner : {layer.intermediate, layer.shared_intermediate}) {
    const int64_t rows = layer.w1_rows(inner);
    for (const auto& [n, k] : {std::pair(rows, layer.hidden), std::pair(layer.hidden, inner)}) {
      if (inner > 0) {
        checkpoint::expect_quantizable(scheme, spec, n, k, /*halves=*/1);
      }
    }
  }
  formats.weights = spec;
  formats.quant = small_config(scheme, spec);
  formats.activations = activation_spec(formats.quant.a1);
  return formats;
}

Support backend_accepts(All2AllBackend backend, const Deployment& d) {
  if (backend == All2AllBackend::kLowLatency && d.low_latency_sum == LowLatencySum::kRanks &&
      d.topology().num_nodes() > 1) {
    return Support::no(
        fmt::format("sums per rank over {} nodes: ranks must share one", d.topology().num_nodes()));
  }
  if (backend == All2AllBackend::kNone || !d.formats.weights) {
    return Support::yes();
  }
  const QuantConfig& config = d.formats.quant;
  const bool is_low_latency = backend == All2AllBackend::kLowLatency;
  Support support = Support::yes();
  run_thread_ranks({.num_ranks = 1, .pin = false}, [&](Group& group) {
    const ExpertPlacement placement = ExpertPlacement::linear(1, 1);
    std::unique_ptr<PrepareFinalize> made;
    if (is_low_latency) {
      const LowLatencyOptions options{
          .max_tokens = 1, .hidden = d.layer.hidden, .in_dtype = d.layer.dtype};
      made = make_low_latency(std::make_shared<LowLatency>(group, placement, options));
    } else if (backend == All2AllBackend::kHighThroughput) {
      made = make_high_throughput(std::make_shared<HighThroughput>(group, placement));
    } else {
      made = make_allgather_reducescatter(group);
    }
    const bool defers = config.a1.format && !takes_codes(*config.a1.format);
    support = made->accepts(config, defers);
  });
  return support;
}

}  // namespace moebius::plan
