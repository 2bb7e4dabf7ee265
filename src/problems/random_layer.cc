// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "problems/random_layer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/load_schemes.h"
#include "checkpoint/model_config.h"
#include "checkpoint/presets.h"
#include "checkpoint/random_fill.h"
#include "moebius/dtype.h"
#include "moebius/float_types.h"

namespace moebius::bench {

using namespace checkpoint;

namespace {

constexpr float kBiasSigma = 0.1f;

// The number of standard deviations that the largest code stands for.
constexpr float kRange = 4.0f;

float largest_code(QuantFormat format) {
  switch (format) {
    case QuantFormat::kFp8:
    case QuantFormat::kMxfp8:
      return kE4M3Max;
    case QuantFormat::kInt8:
      return 127.0f;
    case QuantFormat::kInt4:
      return 7.0f;
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      return kE2M1Max;
    case QuantFormat::kMxfp6E3M2:
      return kE3M2Max;
    case QuantFormat::kMxfp6E2M3:
      return 7.5f;
  }
  return 1.0f;
}

ValueTable codes(QuantFormat format) {
  const float unit = largest_code(format) / kRange;
  switch (format) {
    case QuantFormat::kInt4:
      return ValueTable::normal_nibbles([=](float x) {
        return static_cast<uint8_t>(std::clamp(std::round(8.0f + x * unit), 0.0f, 15.0f));
      });
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      return ValueTable::normal_nibbles([=](float x) { return e2m1_from_float(x * unit); });
    case QuantFormat::kMxfp6E3M2:
    case QuantFormat::kMxfp6E2M3:  // four values share three bytes, and all bytes are valid
      return ValueTable::uniform(DType::kU8, [](float u) { return std::floor(u * 256.0f); });
    default:
      return ValueTable::normal(storage_dtype(format), [=](float x) { return x * unit; });
  }
}

}  // namespace

struct RandomLayers::State {
  MoeLayerWeights make(int64_t num_experts, int64_t topk) {
    const ModelInfo& info = config.info;
    MoeLayerWeights out;
    out.config.num_experts = num_experts;
    out.config.experts_per_token = topk;
    out.config.hidden = info.hidden;
    out.config.intermediate = info.intermediate;
    out.config.in_dtype = dtype();
    out.config.validate();
    out.router_config = config.router;
    out.router_config.num_experts = num_experts;
    out.router_config.topk = topk;
    out.router.gate = normal("gate", {num_experts, info.hidden}, sigma(info.hidden));
    if (config.has_router_bias) {
      out.router.bias = normal("router bias", {num_experts}, kBiasSigma);
    }
    if (config.has_correction_bias) {
      // A trained bias evens out the loads of experts.  With a random gate they are even already; a
      // random bias would give some experts five times the mean.
      out.router.correction_bias = Tensor::zeros({num_experts}, DType::kF32);
    }
    out.apply_router_weight_on_input = config.apply_router_weight_on_input;
    out.activation = config.activation;
    out.experts = experts("routed", num_experts, info.intermediate);
    if (info.num_shared_experts > 0) {
      out.shared = experts("shared", 1, info.shared_intermediate);
      out.shared_intermediate = info.shared_intermediate;
    }
    if (config.has_shared_gate) {
      out.shared_gate = normal("shared gate", {1, info.hidden}, sigma(info.hidden));
    }
    return out;
  }

  int64_t bytes() const {
    const ModelInfo& info = config.info;
    const int64_t w1_rows = config.activation.gated ? 2 : 1;
    const int64_t per_element =
        scheme == nullptr ? bits(dtype()) : bits(storage_dtype(scheme->format));
    return info.hidden * (w1_rows + 1) *
           (info.num_experts * info.intermediate + info.shared_intermediate) * per_element / 8;
  }

  DType dtype() const { return config.info.dtype.value_or(DType::kBF16); }

  static float sigma(int64_t cols) { return 1.0f / std::sqrt(static_cast<float>(cols)); }

  // Tensors of one name share the table that make_table() returns, in all layers.
  template <typename MakeTable>
  void fill(const Tensor& out, const std::string& name, const MakeTable& make_table) {
    auto found = tables.find(name);
    if (found == tables.end()) {
      found = tables.emplace(name, make_table()).first;
    }
    found->second.fill({out.bytes(), static_cast<size_t>(out.nbytes())}, 0, tensor_seed(seed, name),
                       stream);
  }

  Tensor normal(const std::string& name, const Shape& shape, float deviation) {
    Tensor out = Tensor::empty(shape, dtype());
    fill(out, name,
         [&] { return ValueTable::normal(dtype(), [=](float x) { return x * deviation; }); });
    return out;
  }

  ExpertWeights experts(const std::string& name, int64_t num, int64_t intermediate) {
    const int64_t hidden = config.info.hidden;
    const int64_t w1_rows = config.activation.gated ? 2 * intermediate : intermediate;
    ExpertWeights out;
    if (scheme == nullptr) {
      out.w1 = normal(name + " w1", {num, w1_rows, hidden}, sigma(hidden));
      out.w2 = normal(name + " w2", {num, hidden, intermediate}, sigma(intermediate));
    } else {
      const bool has_halves = config.activation.gated && !config.activation.interleaved;
      const QuantizeSpec spec =
          load_weight_spec(*scheme, hidden, intermediate, config.activation.interleaved);
      const QuantizedWeight w1 =
          quantized(name + " w1", spec, {num, w1_rows, hidden}, has_halves ? 2 : 1);
      const QuantizedWeight w2 = quantized(name + " w2", spec, {num, hidden, intermediate}, 1);
      out.w1 = w1.values;
      out.w2 = w2.values;
      out.quant = make_quant_config(*scheme, spec, w1, w2);
    }
    if (config.has_expert_bias) {
      out.quant.w1.bias = normal(name + " w1 bias", {num, w1_rows}, kBiasSigma);
      out.quant.w2.bias = normal(name + " w2 bias", {num, hidden}, kBiasSigma);
    }
    return out;
  }

  QuantizedWeight quantized(const std::string& name,
                            const QuantizeSpec& spec,
                            const Shape& shape,
                            int64_t halves) {
    QuantizedWeight out = allocate_weight(*scheme, spec, shape, halves);
    fill(out.values, name, [&] { return codes(spec.format); });
    const float unit = sigma(shape[2]) * kRange / largest_code(spec.format);
    if (out.global_scale) {
      constexpr float kMeanScale = kE4M3Max / 2;
      fill_scales(out, name, kMeanScale);
      std::fill_n(out.global_scale.data<float>(), out.global_scale.numel(), kMeanScale / unit);
    } else {
      fill_scales(out, name, unit);
    }
    return out;
  }

  // Scales vary by a factor of two, as real ones do.
  void fill_scales(const QuantizedWeight& out, const std::string& name, float base) {
    fill(out.scale, name + " scale", [&] {
      return ValueTable::uniform(out.scale.dtype(),
                                 [=](float u) { return base * std::exp2(u - 0.5f); });
    });
  }

  ModelConfig config;
  const LoadScheme* scheme;  // null: not quantized
  Stream stream;
  std::map<std::string, ValueTable> tables;  // by the tensor's name
  uint64_t seed = 0;
};

RandomLayers::RandomLayers(const std::string& preset,
                           const std::string& quant,
                           const Stream& stream)
    : state_(std::make_unique<State>(
          State{.config = parse_model_config(synthetic_config(preset, 1, "none"), preset),
                .scheme = quant == "none" ? nullptr : &find_load_scheme(quant, "none"),
                .stream = stream,
                .tables = {}})) {}
RandomLayers::~RandomLayers() = default;

int64_t RandomLayers::bytes_per_layer() const {
  return state_->bytes();
}

MoeLayerWeights RandomLayers::make(uint64_t seed, int64_t num_experts, int64_t topk) {
  const ModelInfo& info = state_->config.info;
  state_->seed = seed;
  return state_->make(num_experts > 0 ? num_experts : info.num_experts,
                      topk > 0 ? topk : info.topk);
}

}  // namespace moebius::bench
