// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ModelConfig: what config.json says about the MoE layers, in one form for all families.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/config_fields.h"
#include "checkpoint/quant_rules.h"
#include "moebius/checkpoint.h"

namespace moebius::checkpoint {

struct Family;

struct ModelConfig {
  ModelInfo info;
  const Family* family = nullptr;
  RouterConfig router;
  bool has_router_bias = false;
  bool has_correction_bias = false;
  bool has_shared_gate = false;
  bool has_expert_bias = false;
  bool apply_router_weight_on_input = false;
  ActivationSpec activation;
  QuantRules quantization;
  std::string file;  // config.json, as messages name it
};

// The names in config.json and in the tensor files that differ between families.
struct Family {
  std::string_view model_type = {};
  std::string_view other_model_type = {};  // of a text_config; empty: none
  std::string_view intermediate_key = {};  // of one routed expert
  // Reads the family's own fields.  REQUIRES: num_layers, hidden, intermediate, num_experts and
  // topk are read already.
  void (*read)(const ConfigFields& fields, ModelConfig& config) = nullptr;

  std::string_view block = "mlp";       // the MoE block's name in the layer
  std::string_view other_block = {};    // another spelling of block; empty: none
  std::string_view router = "gate";     // module with the router's weight
  std::string_view gate = "gate_proj";  // modules of one expert
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";
  std::string_view shared = {};  // module of the shared experts; empty: none
  bool is_transposed = false;    // fused expert weights are [E, K, N] instead of [E, N, K]
};

// nullptr for an unknown family.
const Family* find_family(std::string_view model_type);
std::string family_names();  // "mixtral, qwen2_moe, ..."

// Throws InvalidArgument naming file, field and both values, or Unsupported naming the family or
// the quantization method.
ModelConfig read_model_config(const std::filesystem::path& directory);
// The same for the content of a config.json; `file` names it in messages.
ModelConfig parse_model_config(const nlohmann::json& content, const std::string& file);

}  // namespace moebius::checkpoint
