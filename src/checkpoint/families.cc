// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The table of families: the names of fields and tensors, and how tokens are routed.  Defaults are
// those of the configuration classes in Hugging Face transformers.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "checkpoint/model_config.h"

namespace moebius::checkpoint {

namespace {

constexpr int64_t kMax = int64_t{1} << 28;

// Lists the layers in [0, num_layers) for which is_moe(layer) holds.
template <typename Predicate>
void set_moe_layers(ModelInfo& info, Predicate is_moe) {
  for (int64_t layer = 0; layer < info.num_layers; ++layer) {
    if (is_moe(layer)) {
      info.moe_layers.push_back(layer);
    }
  }
}

// Why sorted: a file may list any number of layers, so they are looked up by binary search.
std::vector<int64_t> sorted_layers(const ConfigFields& fields,
                                   std::string_view key,
                                   int64_t highest) {
  std::vector<int64_t> layers = fields.integers(key, 0, highest);
  std::sort(layers.begin(), layers.end());
  return layers;
}

void set_all_moe(ModelInfo& info) {
  set_moe_layers(info, [](int64_t) { return true; });
}

void read_mixtral(const ConfigFields&, ModelConfig& config) {
  config.router.renormalize = true;
  set_all_moe(config.info);
}

void read_olmoe(const ConfigFields& fields, ModelConfig& config) {
  config.router.renormalize = fields.boolean_or("norm_topk_prob", false);
  set_all_moe(config.info);
}

void read_qwen3(const ConfigFields& fields, ModelConfig& config) {
  config.router.renormalize = fields.boolean_or("norm_topk_prob", false);
  const int64_t step = fields.integer_or("decoder_sparse_step", 1, 1, kMax);
  std::vector<int64_t> dense;
  if (fields.has("mlp_only_layers")) {
    dense = sorted_layers(fields, "mlp_only_layers", kMax);
  }
  set_moe_layers(config.info, [&](int64_t layer) {
    return (layer + 1) % step == 0 && !std::binary_search(dense.begin(), dense.end(), layer);
  });
}

void read_qwen2(const ConfigFields& fields, ModelConfig& config) {
  read_qwen3(fields, config);
  config.info.num_shared_experts = 1;
  config.info.shared_intermediate = fields.integer("shared_expert_intermediate_size", 1, kMax);
  config.has_shared_gate = true;
}

struct DeepseekDefaults {
  std::string_view topk_method;
  std::string_view scoring;
  int64_t num_groups;
  int64_t topk_groups;
  bool renormalize;
  float scaling;
  int64_t first_dense;
  int64_t num_shared;
};

void read_deepseek(const ConfigFields& fields,
                   ModelConfig& config,
                   const DeepseekDefaults& defaults) {
  RouterConfig& router = config.router;
  const std::string method = fields.string_or("topk_method", defaults.topk_method);
  if (method != "greedy" && method != "group_limited_greedy" && method != "noaux_tc") {
    fields.unsupported("topk_method", "greedy, group_limited_greedy, noaux_tc");
  }
  config.has_correction_bias = method == "noaux_tc";
  const std::string scoring = fields.string_or("scoring_func", defaults.scoring);
  if (scoring != "softmax" && scoring != "sigmoid") {
    fields.unsupported("scoring_func", "softmax, sigmoid");
  }
  router.scoring = scoring == "softmax" ? Scoring::kSoftmax : Scoring::kSigmoid;
  if (method != "greedy") {
    router.num_groups = fields.integer_or("n_group", defaults.num_groups, 1, kMax);
    router.topk_groups = fields.integer_or("topk_group", defaults.topk_groups, 1, kMax);
  }
  router.renormalize = fields.boolean_or("norm_topk_prob", defaults.renormalize);
  router.routed_scaling_factor = fields.float_or("routed_scaling_factor", defaults.scaling);

  ModelInfo& info = config.info;
  // null says that there are none.
  info.num_shared_experts =
      fields.is_null("n_shared_experts")
          ? 0
          : fields.integer_or("n_shared_experts", defaults.num_shared, 0, 1 << 10);
  info.shared_intermediate = info.num_shared_experts * info.intermediate;
  const int64_t first = fields.integer_or("first_k_dense_replace", defaults.first_dense, 0, kMax);
  const int64_t freq = fields.integer_or("moe_layer_freq", 1, 1, kMax);
  set_moe_layers(info, [&](int64_t layer) { return layer >= first && layer % freq == 0; });
}

void read_deepseek_v2(const ConfigFields& fields, ModelConfig& config) {
  read_deepseek(fields, config, {"greedy", "softmax", 1, 1, false, 1.0f, 0, 2});
}

void read_deepseek_v3(const ConfigFields& fields, ModelConfig& config) {
  read_deepseek(fields, config, {"noaux_tc", "sigmoid", 8, 4, true, 2.5f, 3, 1});
}

void read_glm4(const ConfigFields& fields, ModelConfig& config) {
  read_deepseek(fields, config, {"noaux_tc", "sigmoid", 1, 1, true, 1.0f, 1, 1});
}

void read_gpt_oss(const ConfigFields& fields, ModelConfig& config) {
  config.router.score_after_topk = true;  // the softmax is over the chosen experts
  config.has_router_bias = true;
  config.has_expert_bias = true;
  config.activation.kind = Activation::kSwigluOai;
  config.activation.interleaved = true;
  config.activation.limit = fields.float_or("swiglu_limit", 7.0f);
  if (!(config.activation.limit > 0)) {
    fields.refuse("swiglu_limit", "a number above 0");
  }
  set_all_moe(config.info);
}

void read_llama4(const ConfigFields& fields, ModelConfig& config) {
  config.router.scoring = Scoring::kSigmoid;
  config.router.score_after_topk = true;
  config.apply_router_weight_on_input = true;
  ModelInfo& info = config.info;
  info.num_shared_experts = 1;
  info.shared_intermediate = info.intermediate;
  if (fields.has("moe_layers")) {
    const auto layers = sorted_layers(fields, "moe_layers", info.num_layers - 1);
    set_moe_layers(info, [&](int64_t layer) {
      return std::binary_search(layers.begin(), layers.end(), layer);
    });
    return;
  }
  const int64_t step = fields.integer_or("interleave_moe_layer_step", 1, 1, kMax);
  set_moe_layers(info, [&](int64_t layer) { return (layer + 1) % step == 0; });
}

constexpr std::array<Family, 9> kFamilies = {{
    {.model_type = "mixtral",
     .intermediate_key = "intermediate_size",
     .read = read_mixtral,
     .block = "block_sparse_moe",
     .other_block = "mlp",
     .gate = "w1",
     .up = "w3",
     .down = "w2"},
    {.model_type = "qwen2_moe",
     .intermediate_key = "moe_intermediate_size",
     .read = read_qwen2,
     .shared = "shared_expert"},
    {.model_type = "qwen3_moe", .intermediate_key = "moe_intermediate_size", .read = read_qwen3},
    {.model_type = "deepseek_v2",
     .intermediate_key = "moe_intermediate_size",
     .read = read_deepseek_v2,
     .shared = "shared_experts"},
    {.model_type = "deepseek_v3",
     .intermediate_key = "moe_intermediate_size",
     .read = read_deepseek_v3,
     .shared = "shared_experts"},
    {.model_type = "gpt_oss",
     .intermediate_key = "intermediate_size",
     .read = read_gpt_oss,
     .router = "router",
     .is_transposed = true},
    {.model_type = "llama4",
     .other_model_type = "llama4_text",
     .intermediate_key = "intermediate_size",
     .read = read_llama4,
     .block = "feed_forward",
     .router = "router",
     .shared = "shared_expert",
     .is_transposed = true},
    {.model_type = "olmoe", .intermediate_key = "intermediate_size", .read = read_olmoe},
    {.model_type = "glm4_moe",
     .intermediate_key = "moe_intermediate_size",
     .read = read_glm4,
     .shared = "shared_experts"},
}};

}  // namespace

const Family* find_family(std::string_view model_type) {
  for (const Family& family : kFamilies) {
    if (family.model_type == model_type ||
        (!family.other_model_type.empty() && family.other_model_type == model_type)) {
      return &family;
    }
  }
  return nullptr;
}

std::string family_names() {
  std::string names;
  for (const Family& family : kFamilies) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", family.model_type);
  }
  return names;
}

}  // namespace moebius::checkpoint
