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

void read_activation(const ConfigFields& fields, ActivationSpec& activation) {
  if (activation.kind == Activation::kSwigluOai) {
    return;  // the family decides, whatever hidden_act says
  }
  const std::string text = fields.string_or("hidden_act", "silu");
  if (text == "silu" || text == "swish") {
    activation.kind = Activation::kSilu;
  } else if (text == "gelu") {
    activation.kind = Activation::kGelu;
  } else if (text == "gelu_pytorch_tanh" || text == "gelu_new") {
    activation.kind = Activation::kGeluTanh;
  } else {
    fields.unsupported("hidden_act", "silu, gelu, gelu_pytorch_tanh");
  }
}

// Why not one group where they do not divide: transformers cannot route such a model either, so
// nobody would know what it means.
void check_groups(const ConfigFields& fields, const RouterConfig& router) {
  const auto or_default = [&](std::string_view key, int64_t value) {
    return fields.has(key) ? "" : fmt::format(" (it is {} where it is missing)", value);
  };
  if (router.num_experts % router.num_groups != 0) {
    fields.refuse("n_group", fmt::format("a divisor of the {} experts{}", router.num_experts,
                                         or_default("n_group", router.num_groups)));
  }
  if (router.topk_groups > router.num_groups) {
    fields.refuse("topk_group", fmt::format("at most n_group, {}{}", router.num_groups,
                                            or_default("topk_group", router.topk_groups)));
  }
  const int64_t eligible = router.num_experts / router.num_groups * router.topk_groups;
  if (router.topk > eligible) {
    fields.refuse("num_experts_per_tok",
                  fmt::format("at most the {} experts of {} groups", eligible, router.topk_groups));
  }
}

}  // namespace

ModelConfig read_model_config(const fs::path& directory) {
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
  // Multimodal models keep the part of the language model in text_config.
  const bool is_nested = top.has("text_config") && !top.has("hidden_size");
  const ConfigFields fields = is_nested ? top.object("text_config") : top;

  ModelConfig config;
  config.file = file;
  const ConfigFields& typed = fields.has("model_type") ? fields : top;
  config.family = find_family(typed.string("model_type"));
  if (config.family == nullptr) {
    typed.unsupported("model_type", family_names());
  }
  ModelInfo& info = config.info;
  info.family = config.family->model_type;
  info.num_layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  info.hidden = fields.integer("hidden_size", 1, kMaxSize);
  info.intermediate = fields.integer(config.family->intermediate_key, 1, kMaxSize);
  info.num_experts = fields.integer(
      fields.first_of({"num_experts", "num_local_experts", "n_routed_experts"}), 1, kMaxExperts);
  const auto topk_key = fields.first_of({"num_experts_per_tok", "experts_per_token"});
  info.topk = fields.integer(topk_key, 1, kMaxExperts);
  if (info.topk > info.num_experts) {
    fields.refuse(topk_key, fmt::format("at most the {} experts", info.num_experts));
  }
  config.router.num_experts = info.num_experts;
  config.router.topk = info.topk;
  config.family->read(fields, config);
  check_groups(fields, config.router);
  read_activation(fields, config.activation);
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
