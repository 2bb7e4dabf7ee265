// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The table of families: its defaults are those of transformers, and the documentation has it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/model_config.h"
#include "tests/checkpoint/checkpoint_testing.h"
#include "tests/checkpoint/small_models.h"

namespace moebius::testing {
namespace {

using namespace checkpoint;
using nlohmann::json;

// Keys with which a reader does something where their default is not what an absent key means.
const std::set<std::string> kRead = {
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "moe_intermediate_size",
    "shared_intermediate_size",
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_experts_per_tok",
    "moe_k",
    "moe_topk",
    "n_shared_experts",
    "num_shared_experts",
    "moe_num_shared_experts",
    "n_group",
    "topk_group",
    "norm_topk_prob",
    "routed_scaling_factor",
    "router_scaling_factor",
    "moe_routed_scaling_factor",
    "route_scale",
    "first_k_dense_replace",
    "num_dense_layers",
    "topk_method",
    "hidden_activation",
    "mlp_hidden_act",
};

// What an absent key means to the reader where the table has no default.
json meaning_of_absence(const std::string& key) {
  if (key == "norm_topk_prob") {
    return false;
  }
  if (key.ends_with("scaling_factor") || key == "route_scale") {
    return 1.0;
  }
  if (key == "n_group" || key == "topk_group") {
    return 1;
  }
  return key == "first_k_dense_replace" ? json(0) : json();
}

TEST(FamilyTable, DefaultsAreThoseOfTransformers) {
  const json all = json::parse(read_text("tests/fixtures/defaults.json"));
  for (const auto& [name, theirs] : all.items()) {
    const Family* family = find_family(name);
    if (family == nullptr) {
      continue;
    }
    const json ours = json::parse(family->defaults);
    for (const auto& [key, value] : theirs.items()) {
      const bool is_other_size =
          key == "intermediate_size" && family->intermediate != "intermediate_size";
      const bool is_fixed = key == "norm_topk_prob" && family->renormalize.has_value();
      const bool counts_elsewhere =
          key == "n_shared_experts" && family->shared_count != "n_shared_experts";
      if (!kRead.contains(key) || is_other_size || is_fixed || counts_elsewhere ||
          value.is_null()) {
        continue;
      }
      // The number of experts has several names.
      const bool is_count = key == "num_local_experts" && ours.contains("num_experts");
      const std::string own = is_count ? "num_experts" : key;
      EXPECT_EQ(ours.contains(own) ? ours[own] : meaning_of_absence(key), value)
          << name << ": " << key;
    }
    for (const auto& [key, value] : ours.items()) {
      if (theirs.contains(key) && !theirs[key].is_null()) {
        EXPECT_EQ(value, theirs[key]) << name << ": " << key;
      }
    }
  }
}

// The configuration that shows what a family is: that of its fixture, else one with defaults alone.
ModelConfig shown_config(const Family& family) {
  const fs::path folder = fs::path("tests/fixtures") / family.model_type;
  return fs::exists(folder) ? read_model_config(folder)
                            : parse_model_config({{"model_type", family.model_type}}, "x");
}

std::string router_text(const ModelConfig& config) {
  const RouterConfig& router = config.router;
  static const std::map<Scoring, std::string> kScorings = {
      {Scoring::kSoftmax, "softmax"},
      {Scoring::kSigmoid, "sigmoid"},
      {Scoring::kSqrtSoftplus, "sqrt(softplus)"},
      {Scoring::kSparseMixer, "sparse mixer"}};
  std::string text = kScorings.at(router.scoring);
  text = router.score_after_topk ? "top-k, then " + text : text;
  text += config.has_correction_bias ? ", correction bias" : "";
  text += config.family->has_groups ? ", groups" : "";
  text += config.has_router_bias ? ", bias" : "";
  text += config.has_normed_router ? ", norm and scale before, scale per expert" : "";
  text += config.apply_router_weight_on_input ? ", weight on the input" : "";
  return text;
}

std::string shared_text(const ModelConfig& config) {
  if (config.info.num_shared_experts == 0) {
    return "no";
  }
  return config.has_shared_gate   ? "with a gate"
         : config.averages_shared ? "averaged or added"
                                  : "yes";
}

std::string activation_text(const ModelConfig& config) {
  const ActivationSpec& spec = config.activation;
  const bool is_silu = spec.kind == Activation::kSwigluOai && spec.alpha == 1.0f;
  return fmt::format("{}{}", is_silu ? "silu, clamped" : name(spec.kind),
                     spec.gated ? "" : ", no gate");
}

// The table of docs/families.md.
std::string family_table() {
  std::string table =
      "| model_type | also | router | shared experts | activation | remarks |\n"
      "| --- | --- | --- | --- | --- | --- |\n";
  for (const Family& family : families()) {
    const ModelConfig config = shown_config(family);
    table += fmt::format("| {} | {} | {} | {} | {} | {} |\n", family.model_type,
                         fmt::join(spellings(family.other_types), ", "), router_text(config),
                         shared_text(config), activation_text(config), family.note);
  }
  return table;
}

TEST(FamilyTable, DocumentationHasIt) {
  EXPECT_NE(read_text("docs/families.md").find("\n" + family_table() + "\n"), std::string::npos)
      << "docs/families.md must have this table:\n"
      << family_table();
}

// Deleting n_shared_experts used to drop the shared experts without a word.
TEST(FamilyTable, AnAbsentKeyHasTheDefaultOfTransformers) {
  json config = small_config("deepseek_v3");
  ASSERT_EQ(parse_model_config(config, "x").info.num_shared_experts, 1);
  config.erase("n_shared_experts");
  EXPECT_EQ(parse_model_config(config, "x").info.num_shared_experts, 1);
  config["n_shared_experts"] = nullptr;
  EXPECT_EQ(parse_model_config(config, "x").info.num_shared_experts, 0);
  config.erase("routed_scaling_factor");
  EXPECT_EQ(parse_model_config(config, "x").router.routed_scaling_factor, 2.5f);
}

// Published configurations have some sizes once per layer.
TEST(FamilyTable, ListsOfOneValueStandForIt) {
  json config = {{"model_type", "hunyuan_v1_moe"}, {"hidden_size", 64}, {"num_hidden_layers", 2},
                 {"intermediate_size", 16},        {"num_experts", 8},  {"moe_topk", {2, 2}}};
  EXPECT_EQ(parse_model_config(config, "x").info.topk, 2);
  config["moe_topk"] = {2, 4};
  EXPECT_EQ(message_of<Unsupported>([&] { parse_model_config(config, "x"); }),
            "x: moe_topk is [2,4], supported: an integer, or a list of equal integers");
}

}  // namespace
}  // namespace moebius::testing
