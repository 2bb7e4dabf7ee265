// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ModelConfig: what config.json says about the MoE layers, in one form for all families.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config_fields.h"
#include "checkpoint/family.h"
#include "checkpoint/quant_rules.h"
#include "moebius/checkpoint.h"

namespace moebius::checkpoint {

struct ModelConfig {
  ModelInfo info;
  const Family* family = nullptr;
  RouterConfig router;
  bool has_router_bias = false;
  bool has_correction_bias = false;
  bool has_shared_gate = false;
  bool has_expert_bias = false;
  bool apply_router_weight_on_input = false;
  // A group's score is the sum of its best two experts, though there is no correction bias.
  bool scores_groups_by_two = false;
  // Gemma 4: the router has a norm of its own, see load_router().
  bool has_normed_router = false;
  // The output is the mean of routed and shared experts instead of their sum.
  bool averages_shared = false;
  // Layers whose experts are chosen by token ids, for which the layer has no router.
  std::vector<int64_t> hash_layers;
  ActivationSpec activation;
  QuantRules quantization;
  std::string file;  // config.json, as messages name it
};

// Throws InvalidArgument naming file, field and both values, or Unsupported naming the family or
// the quantization method.
ModelConfig read_model_config(const std::filesystem::path& directory);
// The same for the content of a config.json; `file` names it in messages.
ModelConfig parse_model_config(const nlohmann::json& content, const std::string& file);

}  // namespace moebius::checkpoint
