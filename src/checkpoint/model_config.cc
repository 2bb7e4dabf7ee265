// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/model_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "checkpoint/json_text.h"
#include "checkpoint/model_files.h"
#include "checkpoint/safetensors_header.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// No model comes near these bounds, which keep products of two sizes within 64 bits.
constexpr int64_t kMaxSize = int64_t{1} << 28;
constexpr int64_t kMaxExperts = 1 << 20;
constexpr int64_t kMaxLayers = 1 << 16;

std::vector<std::string_view> expert_keys() {
  return {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"};
}

std::vector<std::string_view> topk_keys() {
  return {"num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_k", "moe_topk",
          "top_k_experts"};
}

std::optional<DType> read_dtype(const ConfigFields& fields) {
  for (const std::string_view key : {"dtype", "torch_dtype"}) {
    if (!fields.has(key)) {
      continue;
    }
    const std::string text = fields.string(key);
    for (const auto& [name, dtype] : {std::pair("bfloat16", DType::kBF16),
                                      {"float16", DType::kF16},
                                      {"float32", DType::kF32}}) {
      if (text == name) {
        return dtype;
      }
    }
    fields.unsupported(key, "bfloat16, float16, float32");
  }
  return std::nullopt;
}

void read_activation(const ConfigFields& fields, std::string_view key, ActivationSpec& activation) {
  const std::string text = fields.string_or(key, "silu");
  if (text == "silu" || text == "swish") {
    activation.kind = Activation::kSilu;
  } else if (text == "gelu") {
    activation.kind = Activation::kGelu;
  } else if (text == "gelu_pytorch_tanh" || text == "gelu_new") {
    activation.kind = Activation::kGeluTanh;
  } else if (text == "relu2") {
    activation.kind = Activation::kRelu2;
    activation.gated = false;
  } else {
    fields.unsupported(key, "silu, gelu, gelu_pytorch_tanh, relu2");
  }
}

// Everything that the row of the family says.
void read_row(const ConfigFields& fields, const Family& family, ModelConfig& config) {
  ModelInfo& info = config.info;
  RouterConfig& router = config.router;
  router.scoring = family.scoring;
  router.score_after_topk = family.score_after_topk;
  router.renormalize =
      family.renormalize ? *family.renormalize : fields.boolean_or("norm_topk_prob", false);
  config.has_correction_bias = family.has_correction_bias;
  if (family.has_groups) {
    router.num_groups = fields.integer_or("n_group", 1, 1, kMaxSize);
    router.topk_groups = fields.integer_or("topk_group", 1, 1, kMaxSize);
  }
  if (!family.scaling.empty()) {
    router.routed_scaling_factor = fields.float_or(family.scaling, 1.0f);
  }
  if (!family.shared_count.empty()) {  // null says that there are none
    info.num_shared_experts = fields.integer_or(family.shared_count, 0, 0, 1 << 10);
    info.shared_intermediate = info.num_shared_experts * info.intermediate;
  }
  if (!family.shared_size.empty()) {
    info.shared_intermediate = fields.integer_or(family.shared_size, 0, 0, kMaxSize);
    info.num_shared_experts = info.shared_intermediate > 0 ? 1 : 0;
  }
  config.has_shared_gate = !family.shared_gate.empty() && info.num_shared_experts > 0;
  read_activation(fields, family.activation, config.activation);
  family.layers(fields, info);
}

// Looks through the configurations of multimodal models, which keep the language model's apart.
ConfigFields language_model(ConfigFields fields) {
  constexpr std::string_view kWrappers[] = {"thinker_config", "text_config"};
  for (const std::string_view key : kWrappers) {
    if (fields.has(key) && !fields.has("hidden_size")) {
      fields = fields.object(key);
    }
  }
  return fields;
}

// Why not one group where they do not divide: transformers cannot route such a model either, so
// nobody would know what it means.
void check_groups(const ConfigFields& fields, const RouterConfig& router) {
  if (router.num_experts % router.num_groups != 0) {
    fields.refuse("n_group", fmt::format("a divisor of the {} experts", router.num_experts));
  }
  if (router.topk_groups > router.num_groups) {
    fields.refuse("topk_group", fmt::format("at most n_group, {}", router.num_groups));
  }
  const int64_t eligible = router.num_experts / router.num_groups * router.topk_groups;
  if (router.topk > eligible) {
    fields.refuse(fields.first_of(topk_keys()),
                  fmt::format("at most the {} experts of {} groups", eligible, router.topk_groups));
  }
}

}  // namespace

ModelConfig read_model_config(const fs::path& directory) {
  expect_no_cache_root(directory);
  const fs::path path = directory / kConfigFile;
  json content = read_json_object(path);
  const fs::path modelopt = directory / kQuantConfigFile;  // does not name the method
  std::error_code error;
  if (!content.contains("quantization_config") && fs::exists(modelopt, error)) {
    json quantization = read_json_object(modelopt);
    ConfigFields(quantization, modelopt.string()).object("quantization");
    content["quantization_config"] = std::move(quantization["quantization"]);
    content["quantization_config"]["quant_method"] = "modelopt";
  }
  return parse_model_config(content, path.string());
}

ModelConfig parse_model_config(const json& content, const std::string& file) {
  const ConfigFields top(content, file);
  const ConfigFields nested = language_model(top);
  const bool is_nested = nested.path() != top.path();
  const ConfigFields& typed = nested.has("model_type") ? nested : top;

  ModelConfig config;
  config.file = file;
  config.family = find_family(typed.string("model_type"));
  if (config.family == nullptr) {
    typed.unsupported("model_type", family_names());
  }
  const Family& family = *config.family;
  const json defaults = json::parse(family.defaults);
  const ConfigFields fields = nested.with_defaults(defaults);
  ModelInfo& info = config.info;
  info.family = family.model_type;
  info.num_layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  info.hidden = fields.integer("hidden_size", 1, kMaxSize);
  info.intermediate = fields.same_integer(family.intermediate, 1, kMaxSize);
  info.num_experts = fields.same_integer(fields.first_of(expert_keys()), 1, kMaxExperts);
  const auto topk_key = fields.first_of(topk_keys());
  info.topk = fields.same_integer(topk_key, 1, kMaxExperts);
  if (info.topk > info.num_experts) {
    fields.refuse(topk_key, fmt::format("at most the {} experts", info.num_experts));
  }
  config.router.num_experts = info.num_experts;
  config.router.topk = info.topk;
  read_row(fields, family, config);
  if (family.rules != nullptr) {
    family.rules(fields, config);
  }
  check_groups(fields, config.router);
  config.info.dtype = read_dtype(fields);
  if (!config.info.dtype && is_nested) {
    config.info.dtype = read_dtype(top);
  }
  const ConfigFields& quantized = top.has("quantization_config") ? top : fields;
  if (quantized.has("quantization_config")) {
    config.quantization = read_quant_rules(quantized.object("quantization_config"),
                                           fields.string_or("expert_dtype", ""));
  }
  info.quant_method = config.quantization.main().name;
  return config;
}

}  // namespace moebius::checkpoint
