// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/info/raw_config.h"

#include <string_view>
#include <vector>

namespace moebius::app {

namespace {

using nlohmann::json;
using Keys = std::vector<std::string_view>;

const Keys kNumExperts = {"num_experts",     "num_local_experts",  "n_routed_experts",
                          "moe_num_experts", "num_routed_experts", "n_experts"};

const json* find(const json& object, Keys keys) {
  for (const std::string_view key : keys) {
    if (const auto it = object.find(key); it != object.end() && !it->is_null()) {
      return &*it;
    }
  }
  return nullptr;
}

// The part of a configuration that describes the language model: the outermost one that counts
// experts, or else all of it.
const json* language_model(const json& config, int depth = 0) {
  constexpr int kDeepest = 3;
  if (find(config, kNumExperts) != nullptr) {
    return &config;
  }
  for (const auto& [key, value] : config.items()) {
    if (value.is_object() && key.ends_with("_config") && key != "quantization_config" &&
        depth < kDeepest) {
      if (const json* part = language_model(value, depth + 1)) {
        return part;
      }
    }
  }
  return depth == 0 ? &config : nullptr;
}

Json figure(const json& object, Keys keys) {
  const json* value = find(object, keys);
  return value == nullptr ? Json() : Json(*value);
}

std::string text(const json& object, std::string_view key) {
  const json* value = find(object, {key});
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

}  // namespace

RawConfig read_raw_config(const json& config) {
  const json& model = *language_model(config);
  RawConfig raw;
  raw.model_type = text(model, "model_type");
  if (raw.model_type.empty()) {
    raw.model_type = text(config, "model_type");
  }
  raw.architectures = figure(config, {"architectures"});
  raw.num_layers = figure(model, {"num_hidden_layers", "n_layer", "num_layers", "n_layers"});
  raw.hidden = figure(model, {"hidden_size", "d_model", "n_embd", "dim"});
  raw.num_experts = figure(model, kNumExperts);
  raw.intermediate = figure(model, {"moe_intermediate_size", "expert_ffn_hidden_size",
                                    "moe_ffn_hidden_size", "intermediate_size", "ffn_dim"});
  raw.topk = figure(model, {"num_experts_per_tok", "experts_per_token", "num_experts_per_token",
                            "moe_topk", "moe_k", "top_k_experts", "moe_router_topk"});
  for (const json* part : {&config, &model}) {
    if (const json* found = find(*part, {"quantization_config", "compression_config"})) {
      raw.quantization = *found;
      break;
    }
  }
  raw.quant_method = "none";
  if (raw.quantization.is_object()) {
    const std::string method = text(raw.quantization, "quant_method");
    raw.quant_method = method.empty() ? "without quant_method" : method;
  }
  return raw;
}

}  // namespace moebius::app
