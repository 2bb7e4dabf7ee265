// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Very small configurations of every family and every stored format.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/make_model.h"
#include "tests/temp_dir.h"

namespace moebius::testing {

struct SmallModel {
  std::string name;
  nlohmann::json config;
};

inline void PrintTo(const SmallModel& model, std::ostream* out) {
  *out << model.name;
}

inline nlohmann::json small_quantization(const std::string& quant) {
  using nlohmann::json;
  const auto compressed = [](const char* format, json weights, json acts) {
    return json{
        {"quant_method", "compressed-tensors"},
        {"format", format},
        {"config_groups", {{"group_0", {{"weights", weights}, {"input_activations", acts}}}}}};
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
  if (quant == "mxfp4") {
    return {{"quant_method", "mxfp4"}};
  }
  return {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
}

inline std::vector<SmallModel> small_models() {
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
  }
  return models;
}

inline nlohmann::json small_config(std::string_view name) {
  for (const SmallModel& model : small_models()) {
    if (model.name == name) {
      return model.config;
    }
  }
  ADD_FAILURE() << "no small model " << name;
  return {};
}

// Writes the model with all tensors in one file.
inline void write_small_model(const nlohmann::json& config, const TempDir& dir) {
  checkpoint::write_model(config, "x", 1, dir.path(), int64_t{1} << 40);
}

}  // namespace moebius::testing
