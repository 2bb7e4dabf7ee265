// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Family: what the models of one architecture have in common, as data.  A row of the table in
// families.cc is all that a family needs, besides a function where it has a rule of its own.
// A text with several spellings separates them by |; a file uses one of them.  The first one is
// that of published checkpoints, and others are those of transformers' own save_pretrained().
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config_fields.h"
#include "moebius/checkpoint.h"  // brings RouterConfig

namespace moebius::checkpoint {

struct ModelConfig;

// Modules of one expert.
struct ExpertModules {
  std::string_view gate = "gate_proj";
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";
};
inline constexpr ExpertModules kProjModules = {};
inline constexpr ExpertModules kNumberedModules = {"w1", "w3", "w2"};

struct Family {
  std::string_view model_type = {};
  std::string_view other_types = {};  // such as that of its text_config
  // JSON: what the configuration class has where config.json lacks a key.
  std::string_view defaults = "{}";

  // Keys of config.json.
  std::string_view intermediate = "moe_intermediate_size";  // of one routed expert
  std::string_view scaling = {};                            // of the routed experts
  std::string_view shared_count = {};  // shared experts of the size of a routed one
  std::string_view shared_size = {};   // or their intermediate size in all
  std::string_view activation = "hidden_act";

  // The router.
  Scoring scoring = Scoring::kSoftmax;
  bool score_after_topk = false;
  std::optional<bool> renormalize = std::nullopt;  // unset: as norm_topk_prob says
  bool has_correction_bias = false;
  bool has_groups = false;  // n_group, topk_group

  // Lists the layers that have experts in ModelInfo::moe_layers.
  void (*layers)(const ConfigFields& fields, ModelInfo& info) = nullptr;
  // Reads fields and rules of its own.  REQUIRES: all of the above is read already.
  void (*rules)(const ConfigFields& fields, ModelConfig& config) = nullptr;

  // Names of tensors and modules.  They stand below the block, except where ../ leads back to the
  // layer.
  std::string_view block = "mlp";  // the MoE block's name in the layer
  std::string_view router = "gate.weight";
  std::string_view correction_bias = "gate.e_score_correction_bias";
  std::string_view experts = "experts";
  ExpertModules modules = kProjModules;
  // Tensors of all experts together, of gate and up (of up where experts have no gate) and of down.
  std::string_view fused_up = "experts.gate_up_proj";
  std::string_view fused_down = "experts.down_proj";
  bool is_fused = false;       // published in this form
  bool is_transposed = false;  // fused tensors are [E, K, N], where their shape does not tell
  std::string_view shared = {};
  ExpertModules shared_modules = kProjModules;
  std::string_view shared_fused_up = {};  // below `shared`: gate and up in one tensor
  std::string_view shared_gate = {};      // tensor

  std::string_view note = {};  // for the documentation: what the caller does itself
};

std::span<const Family> families();
// nullptr for an unknown model type.
const Family* find_family(std::string_view model_type);
std::string family_names();  // "mixtral, qwen2_moe, ..."

// The spellings of a text.
std::vector<std::string_view> spellings(std::string_view text);

}  // namespace moebius::checkpoint
