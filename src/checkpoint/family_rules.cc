// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/family_rules.h"

#include <fmt/format.h>

#include <algorithm>

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

// What a list with a word or a number per layer says about `layer`, which must be in it.
template <typename T>
const T& of_layer(const ConfigFields& fields,
                  std::string_view key,
                  const std::vector<T>& values,
                  int64_t layer) {
  if (static_cast<size_t>(layer) >= values.size()) {
    fields.refuse(key, fmt::format("a value for layer {}", layer));
  }
  return values[static_cast<size_t>(layer)];
}

void expect_false(const ConfigFields& fields, std::string_view key) {
  if (fields.boolean_or(key, false)) {
    fields.unsupported(key, "false");
  }
}

void read_limit(const ConfigFields& fields, ActivationSpec& activation) {
  activation.limit = fields.float_or("swiglu_limit", activation.limit);
  if (!(activation.limit > 0)) {
    fields.refuse("swiglu_limit", "a number above 0");
  }
}

// silu(min(g, limit)) * clamp(u, -limit, limit)
void clamp_silu(const ConfigFields& fields, ActivationSpec& activation) {
  activation.kind = Activation::kSwigluOai;
  activation.alpha = 1.0f;
  activation.beta = 0.0f;
  activation.limit = 10.0f;
  read_limit(fields, activation);
}

}  // namespace

void all_layers(const ConfigFields&, ModelInfo& info) {
  set_moe_layers(info, [](int64_t) { return true; });
}

// mlp_layer_types or a list moe_layer_freq says it per layer; else the first ones are dense.
void layers_after_dense(const ConfigFields& fields, ModelInfo& info) {
  if (fields.has("mlp_layer_types")) {
    const std::vector<std::string> types = fields.strings("mlp_layer_types");
    set_moe_layers(info, [&](int64_t layer) {
      return of_layer(fields, "mlp_layer_types", types, layer) != "dense";
    });
    return;
  }
  if (fields.is_list("moe_layer_freq")) {
    const std::vector<int64_t> is_moe = fields.integers("moe_layer_freq", 0, 1);
    set_moe_layers(info, [&](int64_t layer) {
      return of_layer(fields, "moe_layer_freq", is_moe, layer) == 1;
    });
    return;
  }
  const char* key = fields.has("num_dense_layers") ? "num_dense_layers" : "first_k_dense_replace";
  const int64_t first = fields.integer_or(key, 0, 0, kMax);
  const int64_t freq = fields.integer_or("moe_layer_freq", 1, 1, kMax);
  set_moe_layers(info, [&](int64_t layer) { return layer >= first && layer % freq == 0; });
}

void qwen_layers(const ConfigFields& fields, ModelInfo& info) {
  const int64_t step = fields.integer_or("decoder_sparse_step", 1, 1, kMax);
  std::vector<int64_t> dense;
  if (fields.has("mlp_only_layers")) {
    dense = sorted_layers(fields, "mlp_only_layers", kMax);
  }
  set_moe_layers(info, [&](int64_t layer) {
    return (layer + 1) % step == 0 && !std::binary_search(dense.begin(), dense.end(), layer);
  });
}

void llama4_layers(const ConfigFields& fields, ModelInfo& info) {
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

void ernie_layers(const ConfigFields& fields, ModelInfo& info) {
  const int64_t first = fields.integer_or("moe_layer_start_index", 1, 0, kMax);
  const int64_t last = fields.integer_or("moe_layer_end_index", -1, -1, kMax);
  const int64_t step = fields.integer_or("moe_layer_interval", 1, 1, kMax);
  set_moe_layers(info, [&](int64_t layer) {
    return (layer + 1) % step == 0 && layer >= first && (last < 0 || layer <= last);
  });
}

void jamba_layers(const ConfigFields& fields, ModelInfo& info) {
  const int64_t period = fields.integer_or("expert_layer_period", 2, 1, kMax);
  const int64_t offset = fields.integer_or("expert_layer_offset", 1, 0, kMax);
  set_moe_layers(info, [&](int64_t layer) { return layer % period == offset; });
}

// E stands for experts in hybrid_override_pattern, which has a letter per layer.
void nemotron_layers(const ConfigFields& fields, ModelInfo& info) {
  if (fields.has("layers_block_type")) {
    const std::vector<std::string> types = fields.strings("layers_block_type");
    info.num_layers = static_cast<int64_t>(types.size());
    set_moe_layers(info, [&](int64_t layer) { return types[static_cast<size_t>(layer)] == "moe"; });
    return;
  }
  const std::string pattern = fields.string("hybrid_override_pattern");
  info.num_layers = static_cast<int64_t>(pattern.size());
  set_moe_layers(info, [&](int64_t layer) { return pattern[static_cast<size_t>(layer)] == 'E'; });
}

void gemma_layers(const ConfigFields& fields, ModelInfo& info) {
  if (fields.boolean_or("enable_moe_block", false)) {
    all_layers(fields, info);
  }
}

void deepseek_rules(const ConfigFields& fields, ModelConfig& config) {
  const std::string scoring = fields.string_or("scoring_func", "sigmoid");
  if (scoring != "softmax" && scoring != "sigmoid") {
    fields.unsupported("scoring_func", "softmax, sigmoid");
  }
  config.router.scoring = scoring == "softmax" ? Scoring::kSoftmax : Scoring::kSigmoid;
  const std::string method = fields.string_or("topk_method", "noaux_tc");
  if (method != "greedy" && method != "group_limited_greedy" && method != "noaux_tc") {
    fields.unsupported("topk_method", "greedy, group_limited_greedy, noaux_tc");
  }
  config.has_correction_bias = method == "noaux_tc";
  if (method == "greedy") {
    config.router.num_groups = config.router.topk_groups = 1;
  }
}

void mistral4_rules(const ConfigFields&, ModelConfig& config) {
  config.scores_groups_by_two = config.router.num_groups > 1;
}

void deepseek_v4_rules(const ConfigFields& fields, ModelConfig& config) {
  const std::string scoring = fields.string_or("scoring_func", "sqrtsoftplus");
  if (scoring != "sqrtsoftplus") {
    fields.unsupported("scoring_func", "sqrtsoftplus");
  }
  clamp_silu(fields, config.activation);
  // The first layers look their experts up by token ids.
  if (fields.has("mlp_layer_types")) {
    const std::vector<std::string> types = fields.strings("mlp_layer_types");
    for (size_t layer = 0; layer < types.size(); ++layer) {
      if (types[layer] == "hash_moe") {
        config.hash_layers.push_back(static_cast<int64_t>(layer));
      }
    }
  } else {
    const int64_t num = fields.integer_or("num_hash_layers", 3, 0, kMax);
    for (int64_t layer = 0; layer < std::min(num, config.info.num_layers); ++layer) {
      config.hash_layers.push_back(layer);
    }
  }
}

void gpt_oss_rules(const ConfigFields& fields, ModelConfig& config) {
  config.has_router_bias = true;
  config.has_expert_bias = true;
  config.activation.kind = Activation::kSwigluOai;
  config.activation.interleaved = true;
  read_limit(fields, config.activation);
}

void minimax_m3_rules(const ConfigFields& fields, ModelConfig& config) {
  config.activation.kind = Activation::kSwigluOai;
  config.activation.alpha = fields.float_or("swiglu_alpha", 1.702f);
  read_limit(fields, config.activation);
}

void llama4_rules(const ConfigFields&, ModelConfig& config) {
  config.apply_router_weight_on_input = true;
  config.info.num_shared_experts = 1;
  config.info.shared_intermediate = config.info.intermediate;
}

void ernie_rules(const ConfigFields& fields, ModelConfig&) {
  expect_false(fields, "use_bias");
}

void hunyuan_rules(const ConfigFields&, ModelConfig& config) {
  config.info.num_shared_experts = 1;
  config.info.shared_intermediate = config.info.intermediate;
}

void lfm2_rules(const ConfigFields& fields, ModelConfig& config) {
  config.has_correction_bias = fields.boolean_or("use_expert_bias", true);
}

void cohere2_rules(const ConfigFields& fields, ModelConfig& config) {
  const std::string scoring = fields.string_or("expert_selection_fn", "softmax");
  if (scoring != "softmax" && scoring != "sigmoid") {
    fields.unsupported("expert_selection_fn", "softmax, sigmoid");
  }
  config.router.scoring = scoring == "softmax" ? Scoring::kSoftmax : Scoring::kSigmoid;
  config.router.renormalize = scoring == "sigmoid" && fields.boolean_or("norm_topk_prob", false);
  const std::string sum = fields.string_or("shared_expert_combination_strategy", "average");
  if (sum != "average" && sum != "sum") {
    fields.unsupported("shared_expert_combination_strategy", "average, sum");
  }
  config.averages_shared = sum == "average" && config.info.num_shared_experts > 0;
  if (config.averages_shared) {
    config.router.routed_scaling_factor = 0.5f;
  }
}

void laguna_rules(const ConfigFields& fields, ModelConfig&) {
  if (fields.number_or("moe_router_logit_softcapping", 0.0) > 0.0) {
    fields.unsupported("moe_router_logit_softcapping", "0");
  }
  expect_false(fields, "moe_apply_router_weight_on_input");
}

void nemotron_rules(const ConfigFields& fields, ModelConfig& config) {
  if (fields.has("moe_latent_size")) {
    fields.unsupported("moe_latent_size", "null");
  }
  expect_false(fields, "mlp_bias");
  if (config.activation.gated) {
    fields.unsupported("mlp_hidden_act", "relu2");
  }
}

void gemma_rules(const ConfigFields&, ModelConfig& config) {
  config.has_normed_router = true;
}

void phimoe_rules(const ConfigFields& fields, ModelConfig& config) {
  config.router.mixer_epsilon = fields.float_or("router_jitter_noise", 0.01f);
  if (!(config.router.mixer_epsilon >= 0)) {
    fields.refuse("router_jitter_noise", "a number of at least 0");
  }
  if (config.info.topk != 2) {
    fields.unsupported("num_experts_per_tok", "2");
  }
}

void kimi_linear_rules(const ConfigFields& fields, ModelConfig& config) {
  const std::string scoring = fields.string_or("moe_router_activation_func", "sigmoid");
  if (scoring != "softmax" && scoring != "sigmoid") {
    fields.unsupported("moe_router_activation_func", "softmax, sigmoid");
  }
  config.router.scoring = scoring == "softmax" ? Scoring::kSoftmax : Scoring::kSigmoid;
  config.router.renormalize = fields.boolean_or("moe_renormalize", true);
  config.router.num_groups = fields.integer_or("num_expert_group", 1, 1, kMax);
  config.router.topk_groups = fields.integer_or("topk_group", 1, 1, kMax);
}

void glm5_next_rules(const ConfigFields& fields, ModelConfig& config) {
  if (!fields.is_null("swiglu_limit")) {
    clamp_silu(fields, config.activation);
  }
}

}  // namespace moebius::checkpoint
