// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/presets.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "checkpoint/model_config.h"
#include "moebius/checkpoint.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

using nlohmann::json;

// The fields that the presets of a family share; they differ in their sizes and in Preset::rest.
struct PresetFamily {
  std::string_view model_type;
  std::string_view architecture;
  std::string_view num_experts_key;
  std::string_view rest;  // JSON
};

constexpr PresetFamily kPresetFamilies[] = {
    {"qwen3_moe", "Qwen3MoeForCausalLM", "num_experts", R"({"norm_topk_prob": true})"},
    {"qwen2_moe", "Qwen2MoeForCausalLM", "num_experts", R"({"norm_topk_prob": false})"},
    {"olmoe", "OlmoeForCausalLM", "num_experts", R"({"norm_topk_prob": false})"},
    {"mixtral", "MixtralForCausalLM", "num_local_experts", "{}"},
    {"gpt_oss", "GptOssForCausalLM", "num_local_experts", R"({"swiglu_limit": 7.0})"},
    {"llama4_text", "Llama4ForCausalLM", "num_local_experts",
     R"({"interleave_moe_layer_step": 1})"},
    {"deepseek_v2", "DeepseekV2ForCausalLM", "n_routed_experts", R"({
      "topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": false,
      "routed_scaling_factor": 1.0, "moe_layer_freq": 1})"},
    {"deepseek_v3", "DeepseekV3ForCausalLM", "n_routed_experts", R"({
      "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": true,
      "routed_scaling_factor": 2.5, "moe_layer_freq": 1, "n_shared_experts": 1})"},
    {"glm4_moe", "Glm4MoeForCausalLM", "n_routed_experts", R"({
      "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 1.0,
      "n_shared_experts": 1})"},
};

struct Preset {
  std::string_view name;
  std::string_view description;
  std::string_view model_type;
  int64_t hidden;
  int64_t intermediate;
  int64_t num_experts;
  int64_t topk;
  int64_t num_layers;
  std::string_view rest = "{}";  // JSON
};

constexpr Preset kPresets[] = {
    {"tiny", "a Qwen3-like layer for trying things out", "qwen3_moe", 256, 128, 16, 4, 2},
    {"tiny-deepseek-v3", "as tiny, in the manner of DeepSeek-V3", "deepseek_v3", 256, 128, 16, 4, 2,
     R"({"n_group": 4, "topk_group": 2, "first_k_dense_replace": 0})"},
    {"tiny-gpt-oss", "as tiny, in the manner of gpt-oss", "gpt_oss", 256, 128, 16, 4, 2},
    {"tiny-llama4", "as tiny, in the manner of Llama 4", "llama4_text", 256, 128, 16, 1, 2,
     R"({"intermediate_size_mlp": 256})"},
    {"mixtral-8x7b", "Mixtral 8x7B", "mixtral", 4096, 14336, 8, 2, 32},
    {"mixtral-8x22b", "Mixtral 8x22B", "mixtral", 6144, 16384, 8, 2, 56},
    {"qwen3-30b-a3b", "Qwen3 30B-A3B", "qwen3_moe", 2048, 768, 128, 8, 48},
    {"qwen3-235b-a22b", "Qwen3 235B-A22B", "qwen3_moe", 4096, 1536, 128, 8, 94},
    {"qwen2-57b-a14b", "Qwen2 57B-A14B: a shared expert with a gate", "qwen2_moe", 3584, 2560, 64,
     8, 28, R"({"shared_expert_intermediate_size": 20480})"},
    {"deepseek-v2-lite", "DeepSeek-V2-Lite: softmax routing, two shared experts", "deepseek_v2",
     2048, 1408, 64, 6, 27,
     R"({"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 2})"},
    {"deepseek-v3", "DeepSeek-V3 and R1: group-limited sigmoid routing", "deepseek_v3", 7168, 2048,
     256, 8, 61, R"({"n_group": 8, "topk_group": 4, "first_k_dense_replace": 3})"},
    {"gpt-oss-20b", "gpt-oss 20B: biases, clamped SwiGLU", "gpt_oss", 2880, 2880, 32, 4, 24},
    {"gpt-oss-120b", "gpt-oss 120B: biases, clamped SwiGLU", "gpt_oss", 2880, 2880, 128, 4, 36},
    {"llama4-scout", "Llama 4 Scout: top-1, weight on the input, shared expert", "llama4_text",
     5120, 8192, 16, 1, 48, R"({"intermediate_size_mlp": 16384})"},
    {"olmoe-1b-7b", "OLMoE 1B-7B", "olmoe", 2048, 1024, 64, 8, 16},
    {"glm-4.5-air", "GLM-4.5-Air: sigmoid routing with correction bias", "glm4_moe", 4096, 1408,
     128, 8, 46, R"({"first_k_dense_replace": 1})"},
};

json config_of(const Preset& preset) {
  const auto* family = std::find_if(
      std::begin(kPresetFamilies), std::end(kPresetFamilies),
      [&](const PresetFamily& known) { return known.model_type == preset.model_type; });
  json config = json::parse(family->rest);
  config.update(json::parse(preset.rest));
  config["architectures"] = {family->architecture};
  config["model_type"] = preset.model_type;
  config["dtype"] = "bfloat16";
  config["hidden_act"] = "silu";
  config["hidden_size"] = preset.hidden;
  config[std::string(find_family(preset.model_type)->intermediate)] = preset.intermediate;
  config[std::string(family->num_experts_key)] = preset.num_experts;
  config["num_experts_per_tok"] = preset.topk;
  config["num_hidden_layers"] = preset.num_layers;
  return config;
}

struct QuantizationConfig {
  std::string_view quant;
  std::string_view config;
};

// The quantization_config of each format, as publishers write it.
constexpr QuantizationConfig kQuantizations[] = {
    {"none", "null"},
    {"fp8", R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
      "weight_block_size": [128, 128]})"},
    {"int8", R"({"quant_method": "compressed-tensors", "format": "int-quantized",
      "config_groups": {"group_0": {"targets": ["Linear"],
        "weights": {"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel"},
        "input_activations": {"num_bits": 8, "type": "int", "symmetric": true,
                              "strategy": "token", "dynamic": true}}}})"},
    {"int4", R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
      "config_groups": {"group_0": {"targets": ["Linear"],
        "weights": {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
                    "group_size": 128},
        "input_activations": null}}})"},
    {"mxfp4", R"({"quant_method": "mxfp4"})"},
    {"nvfp4", R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16})"},
};

json quantization_config(const std::string& quant, std::string_view family) {
  std::string known;
  for (const QuantizationConfig& candidate : kQuantizations) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", candidate.quant);
    if (candidate.quant != quant) {
      continue;
    }
    if (family == "gpt_oss" && quant != "none" && quant != "mxfp4") {
      throw Unsupported(fmt::format(
          "quant {} for gpt_oss: its fused experts are published in bf16 and mxfp4 only", quant));
    }
    if (family != "gpt_oss" && quant == "mxfp4") {
      throw Unsupported(
          fmt::format("quant mxfp4 for {}: only gpt_oss is published in mxfp4", family));
    }
    return json::parse(candidate.config);
  }
  throw InvalidArgument(fmt::format("quant is {}, expected one of {}", quant, known));
}

}  // namespace

json preset_config(const std::string& preset) {
  std::string known;
  for (const Preset& candidate : kPresets) {
    if (candidate.name == preset) {
      return config_of(candidate);
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", candidate.name);
  }
  throw InvalidArgument(fmt::format("preset is {}, expected one of {}", preset, known));
}

json synthetic_config(const std::string& preset, int64_t num_layers, const std::string& quant) {
  json config = preset_config(preset);
  const auto all_layers = config["num_hidden_layers"].get<int64_t>();
  expect_ge(num_layers, 0, "layers");
  expect_le(num_layers, all_layers, fmt::format("layers of {}", preset));
  if (num_layers == 0) {
    num_layers = preset.starts_with("tiny") ? all_layers : 1;
  }
  config["num_hidden_layers"] = num_layers;
  if (config.contains("first_k_dense_replace")) {
    config["first_k_dense_replace"] = 0;
  }
  const json quantization = quantization_config(quant, config["model_type"].get<std::string>());
  if (!quantization.is_null()) {
    config["quantization_config"] = quantization;
  }
  return config;
}

}  // namespace moebius::checkpoint

namespace moebius {

using namespace checkpoint;

std::vector<PresetInfo> model_presets() {
  std::vector<PresetInfo> result;
  for (const Preset& preset : kPresets) {
    const std::string name(preset.name);
    result.push_back(
        {name, std::string(preset.description), parse_model_config(config_of(preset), name).info});
  }
  return result;
}

}  // namespace moebius
