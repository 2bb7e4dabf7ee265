// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/presets.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "checkpoint/model_config.h"
#include "moebius/checkpoint.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

using nlohmann::json;

struct Preset {
  std::string_view name;
  std::string_view description;
  std::string_view config;
};

constexpr Preset kPresets[] = {
    {"tiny", "a Qwen3-like layer for trying things out", R"({
      "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "dtype": "bfloat16",
      "hidden_act": "silu", "hidden_size": 256, "moe_intermediate_size": 128, "num_experts": 16,
      "num_experts_per_tok": 4, "norm_topk_prob": true, "num_hidden_layers": 2})"},
    {"tiny-deepseek-v3", "as tiny, in the manner of DeepSeek-V3", R"({
      "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
      "dtype": "bfloat16", "hidden_act": "silu", "hidden_size": 256,
      "moe_intermediate_size": 128, "n_routed_experts": 16, "n_shared_experts": 1,
      "num_experts_per_tok": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
      "n_group": 4, "topk_group": 2, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
      "first_k_dense_replace": 0, "moe_layer_freq": 1, "num_hidden_layers": 2})"},
    {"tiny-gpt-oss", "as tiny, in the manner of gpt-oss", R"({
      "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "dtype": "bfloat16",
      "hidden_act": "silu", "hidden_size": 256, "intermediate_size": 128,
      "num_local_experts": 16, "num_experts_per_tok": 4, "swiglu_limit": 7.0,
      "num_hidden_layers": 2})"},
    {"tiny-llama4", "as tiny, in the manner of Llama 4", R"({
      "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "dtype": "bfloat16",
      "hidden_act": "silu", "hidden_size": 256, "intermediate_size": 128,
      "intermediate_size_mlp": 256, "num_local_experts": 16, "num_experts_per_tok": 1,
      "interleave_moe_layer_step": 1, "num_hidden_layers": 2})"},
    {"mixtral-8x7b", "Mixtral 8x7B", R"({
      "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "dtype": "bfloat16",
      "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
      "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 32})"},
    {"mixtral-8x22b", "Mixtral 8x22B", R"({
      "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "dtype": "bfloat16",
      "hidden_act": "silu", "hidden_size": 6144, "intermediate_size": 16384,
      "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 56})"},
    {"qwen3-30b-a3b", "Qwen3 30B-A3B", R"({
      "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "dtype": "bfloat16",
      "hidden_act": "silu", "hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128,
      "num_experts_per_tok": 8, "norm_topk_prob": true, "num_hidden_layers": 48})"},
    {"qwen3-235b-a22b", "Qwen3 235B-A22B", R"({
      "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "dtype": "bfloat16",
      "hidden_act": "silu", "hidden_size": 4096, "moe_intermediate_size": 1536,
      "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
      "num_hidden_layers": 94})"},
    {"qwen2-57b-a14b", "Qwen2 57B-A14B: a shared expert with a gate", R"({
      "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "dtype": "bfloat16",
      "hidden_act": "silu", "hidden_size": 3584, "moe_intermediate_size": 2560,
      "shared_expert_intermediate_size": 20480, "num_experts": 64, "num_experts_per_tok": 8,
      "norm_topk_prob": false, "num_hidden_layers": 28})"},
    {"deepseek-v2-lite", "DeepSeek-V2-Lite: softmax routing, two shared experts", R"({
      "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
      "dtype": "bfloat16", "hidden_act": "silu", "hidden_size": 2048,
      "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
      "num_experts_per_tok": 6, "topk_method": "greedy", "scoring_func": "softmax",
      "n_group": 1, "topk_group": 1, "norm_topk_prob": false, "routed_scaling_factor": 1.0,
      "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_hidden_layers": 27})"},
    {"deepseek-v3", "DeepSeek-V3 and R1: group-limited sigmoid routing", R"({
      "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
      "dtype": "bfloat16", "hidden_act": "silu", "hidden_size": 7168,
      "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
      "num_experts_per_tok": 8, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
      "n_group": 8, "topk_group": 4, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
      "first_k_dense_replace": 3, "moe_layer_freq": 1, "num_hidden_layers": 61})"},
    {"gpt-oss-20b", "gpt-oss 20B: biases, clamped SwiGLU", R"({
      "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "dtype": "bfloat16",
      "hidden_act": "silu", "hidden_size": 2880, "intermediate_size": 2880,
      "num_local_experts": 32, "num_experts_per_tok": 4, "swiglu_limit": 7.0,
      "num_hidden_layers": 24})"},
    {"gpt-oss-120b", "gpt-oss 120B: biases, clamped SwiGLU", R"({
      "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "dtype": "bfloat16",
      "hidden_act": "silu", "hidden_size": 2880, "intermediate_size": 2880,
      "num_local_experts": 128, "num_experts_per_tok": 4, "swiglu_limit": 7.0,
      "num_hidden_layers": 36})"},
    {"llama4-scout", "Llama 4 Scout: top-1, weight on the input, shared expert", R"({
      "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "dtype": "bfloat16",
      "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 8192,
      "intermediate_size_mlp": 16384, "num_local_experts": 16, "num_experts_per_tok": 1,
      "interleave_moe_layer_step": 1, "num_hidden_layers": 48})"},
    {"olmoe-1b-7b", "OLMoE 1B-7B", R"({
      "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "dtype": "bfloat16",
      "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 1024, "num_experts": 64,
      "num_experts_per_tok": 8, "norm_topk_prob": false, "num_hidden_layers": 16})"},
    {"glm-4.5-air", "GLM-4.5-Air: sigmoid routing with correction bias", R"({
      "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "dtype": "bfloat16",
      "hidden_act": "silu", "hidden_size": 4096, "moe_intermediate_size": 1408,
      "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8,
      "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 1.0,
      "first_k_dense_replace": 1, "num_hidden_layers": 46})"},
};

struct QuantizationConfig {
  std::string_view quant;
  std::string_view config;
};

// quantization_config as publishers write it.
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
      return json::parse(candidate.config);
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
    result.push_back({name, std::string(preset.description),
                      parse_model_config(json::parse(preset.config), name).info});
  }
  return result;
}

}  // namespace moebius
