// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/checkpoint/small_models.h"

#include <string>
#include <string_view>
#include <vector>

namespace moebius::testing {

nlohmann::json small_quantization(const std::string& quant) {
  using nlohmann::json;
  const auto compressed = [](const char* format, json weights, json acts) {
    return json{{"quant_method", "compressed-tensors"},
                {"format", format},
                {"config_groups",
                 {{"group_0",
                   {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", acts}}}}},
                {"ignore", {"lm_head", "re:.*mlp.gate$"}}};
  };
  const json per_token = {{"num_bits", 8}, {"strategy", "token"}, {"dynamic", true}};
  if (quant == "fp8") {
    return {{"quant_method", "fp8"}, {"weight_block_size", {32, 16}}};
  }
  if (quant == "fp8_channel") {
    json acts = per_token;
    acts["type"] = "float";
    return compressed("float-quantized",
                      {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}}, acts);
  }
  if (quant == "int8") {
    return compressed("int-quantized", {{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}},
                      per_token);
  }
  if (quant == "int8_w8a16") {
    return compressed("int-quantized", {{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}},
                      nullptr);
  }
  if (quant == "int4" || quant == "int4_asym") {
    return compressed("pack-quantized",
                      {{"num_bits", 4},
                       {"type", "int"},
                       {"strategy", "group"},
                       {"group_size", 16},
                       {"symmetric", quant == "int4"}},
                      nullptr);
  }
  if (quant == "int8_asym_group") {
    return compressed("pack-quantized",
                      {{"num_bits", 8},
                       {"type", "int"},
                       {"strategy", "group"},
                       {"group_size", 16},
                       {"symmetric", false}},
                      nullptr);
  }
  if (quant == "int8_asym") {
    return compressed(
        "int-quantized",
        {{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}, {"symmetric", false}}, nullptr);
  }
  if (quant == "fp8_block") {
    return compressed(
        "float-quantized",
        {{"num_bits", 8}, {"type", "float"}, {"strategy", "block"}, {"block_structure", {16, 16}}},
        {{"num_bits", 8},
         {"type", "float"},
         {"strategy", "group"},
         {"group_size", 16},
         {"dynamic", true}});
  }
  if (quant == "fp8_tensor" || quant == "fp8_static") {
    return {{"quant_method", "fp8"},
            {"activation_scheme", quant == "fp8_static" ? "static" : "dynamic"},
            {"modules_to_not_convert", {"lm_head", "model.embed_tokens"}}};
  }
  if (quant == "mxfp8") {
    return {{"quant_method", "mxfp8"}, {"ignored_layers", {"lm_head"}}};
  }
  if (quant == "fbgemm") {
    return {{"quant_method", "fbgemm_fp8"}, {"activation_scale_ub", 1200.0}};
  }
  if (quant.starts_with("gptq")) {
    return {{"quant_method", "gptq"},
            {"bits", quant == "gptq8" ? 8 : 4},
            {"group_size", quant == "gptq_rows" ? -1 : 16},
            {"sym", quant != "gptq_asym" && quant != "gptq_v2"},
            {"desc_act", quant == "gptq_order"},
            {"checkpoint_format", quant == "gptq_v2" ? "gptq_v2" : "gptq"}};
  }
  if (quant == "awq") {
    return {{"quant_method", "awq"}, {"bits", 4},          {"group_size", 16},
            {"version", "gemm"},     {"zero_point", true}, {"modules_to_not_convert", nullptr}};
  }
  if (quant == "mxfp4") {
    return {{"quant_method", "mxfp4"}};
  }
  if (quant == "mxfp4_packed" || quant == "mxfp4_a4") {
    const json group = {{"num_bits", 4},
                        {"type", "float"},
                        {"strategy", "group"},
                        {"group_size", 32},
                        {"dynamic", true}};
    return compressed("mxfp4-pack-quantized",
                      {{"num_bits", 4},
                       {"type", "float"},
                       {"strategy", "group"},
                       {"group_size", 32},
                       {"scale_dtype", "torch.uint8"}},
                      quant == "mxfp4_a4" ? group : json());
  }
  if (quant == "nvfp4_packed" || quant == "nvfp4_a16") {
    const json acts = {{"num_bits", 4},
                       {"type", "float"},
                       {"strategy", "tensor_group"},
                       {"group_size", 16},
                       {"dynamic", "local"}};
    return compressed(
        "nvfp4-pack-quantized",
        {{"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}},
        quant == "nvfp4_packed" ? acts : json());
  }
  if (quant == "modelopt_fp8") {
    return {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"ignore", {"lm_head", "*.gate"}}};
  }
  if (quant == "modelopt_fp8_channel") {
    return {{"quant_method", "modelopt"}, {"quant_algo", "FP8_PER_CHANNEL_PER_TOKEN"}};
  }
  if (quant != "nvfp4") {
    ADD_FAILURE() << "no small quantization " << quant;
  }
  return {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
}

const std::vector<std::string>& other_small_quantizations() {
  static const std::vector<std::string> kNames = {
      "int8_asym_group", "int8_asym",    "fp8_block", "fp8_tensor",   "fp8_static",
      "mxfp8",           "fbgemm",       "gptq",      "gptq_asym",    "gptq_v2",
      "gptq8",           "gptq_order",   "gptq_rows", "awq",          "mxfp4_packed",
      "mxfp4_a4",        "nvfp4_packed", "nvfp4_a16", "modelopt_fp8", "modelopt_fp8_channel"};
  return kNames;
}

std::vector<SmallModel> small_models() {
  using nlohmann::json;
  const json common = {{"hidden_size", 64},           {"num_hidden_layers", 2},
                       {"num_experts_per_tok", 2},    {"dtype", "bfloat16"},
                       {"moe_intermediate_size", 32}, {"intermediate_size", 32}};
  const auto model = [&](json own) {
    json config = common;
    config.update(own);
    return config;
  };
  std::vector<SmallModel> models = {
      {"mixtral", model({{"model_type", "mixtral"}, {"num_local_experts", 4}})},
      {"qwen2_moe", model({{"model_type", "qwen2_moe"},
                           {"num_experts", 4},
                           {"shared_expert_intermediate_size", 96}})},
      {"qwen3_moe", model({{"model_type", "qwen3_moe"}, {"num_experts", 4}})},
      {"deepseek_v2", model({{"model_type", "deepseek_v2"},
                             {"n_routed_experts", 4},
                             {"n_shared_experts", 2},
                             {"first_k_dense_replace", 1}})},
      {"deepseek_v3", model({{"model_type", "deepseek_v3"},
                             {"n_routed_experts", 4},
                             {"n_group", 2},
                             {"topk_group", 1},
                             {"n_shared_experts", 1},
                             {"first_k_dense_replace", 0}})},
      {"gpt_oss", model({{"model_type", "gpt_oss"}, {"num_local_experts", 4}})},
      {"llama4", model({{"model_type", "llama4_text"},
                        {"num_local_experts", 4},
                        {"num_experts_per_tok", 1},
                        {"interleave_moe_layer_step", 2}})},
      {"olmoe", model({{"model_type", "olmoe"}, {"num_experts", 4}})},
      {"glm4_moe",
       model({{"model_type", "glm4_moe"}, {"n_routed_experts", 4}, {"n_shared_experts", 1}})},
      {"nemotron_h", model({{"model_type", "nemotron_h"},
                            {"n_routed_experts", 4},
                            {"moe_shared_expert_intermediate_size", 48},
                            {"hybrid_override_pattern", "EM*E"}})},
  };
  const size_t num_families = models.size();
  for (size_t i = 0; i < num_families; ++i) {
    const bool is_gpt_oss = models[i].name == "gpt_oss";
    const std::vector<std::string> quants =
        is_gpt_oss ? std::vector<std::string>{"mxfp4"}
                   : std::vector<std::string>{"fp8",  "fp8_channel", "int8", "int8_w8a16",
                                              "int4", "int4_asym",   "nvfp4"};
    for (const std::string& quant : quants) {
      json config = models[i].config;
      config["quantization_config"] = small_quantization(quant);
      models.push_back({models[i].name + "_" + quant, config});
    }
    if (models[i].name == "mixtral" || models[i].name == "qwen3_moe" ||
        models[i].name == "deepseek_v3") {
      for (const std::string& quant : other_small_quantizations()) {
        json config = models[i].config;
        config["quantization_config"] = small_quantization(quant);
        models.push_back({models[i].name + "_" + quant, config});
      }
    }
  }
  // These differ from others in what makes no difference to weights in codes.
  const std::vector<SmallModel> others = {
      {"granitemoeshared", model({{"model_type", "granitemoeshared"},
                                  {"num_local_experts", 4},
                                  {"shared_intermediate_size", 48}})},
      {"gemma4", model({{"model_type", "gemma4_text"},
                        {"enable_moe_block", true},
                        {"num_experts", 4},
                        {"top_k_experts", 2}})},
      {"deepseek_v4",
       model({{"model_type", "deepseek_v4"}, {"n_routed_experts", 4}, {"num_hash_layers", 0}})},
      {"ernie4_5_moe", model({{"model_type", "ernie4_5_moe"},
                              {"moe_num_experts", 4},
                              {"moe_k", 2},
                              {"moe_layer_start_index", 0}})},
      {"dots1", model({{"model_type", "dots1"}, {"n_routed_experts", 4}})},
      {"glm4_moe_lite", model({{"model_type", "glm4_moe_lite"}, {"n_routed_experts", 4}})},
      {"hunyuan_v1_moe", model({{"model_type", "hunyuan_v1_moe"},
                                {"num_experts", 4},
                                {"num_experts_per_tok", nullptr},
                                {"moe_topk", 2}})},
      {"phimoe", model({{"model_type", "phimoe"}, {"num_local_experts", 4}})},
      {"laguna", model({{"model_type", "laguna"},
                        {"num_experts", 4},
                        {"shared_expert_intermediate_size", 48}})},
      {"cohere2_moe",
       model({{"model_type", "cohere2_moe"}, {"num_experts", 4}, {"num_shared_experts", 1}})},
      {"qwen3_vl_moe", model({{"model_type", "qwen3_vl_moe_text"}, {"num_experts", 4}})},
  };
  models.insert(models.end(), others.begin(), others.end());
  return models;
}

nlohmann::json small_config(std::string_view name) {
  for (const SmallModel& model : small_models()) {
    if (model.name == name) {
      return model.config;
    }
  }
  ADD_FAILURE() << "no small model " << name;
  return {};
}

void write_small_model(const nlohmann::json& config, const TempDir& dir) {
  checkpoint::write_model(config, "x", 1, dir.path(), int64_t{1} << 40);
}

}  // namespace moebius::testing
