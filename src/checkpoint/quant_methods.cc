// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads quantization_config, in the words of each method that makes checkpoints.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/quant_rules.h"
#include "checkpoint/safetensors_header.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

constexpr int64_t kMaxBlock = 1 << 20;
constexpr GroupShape kMxGroup{1, 32};
constexpr GroupShape kNvGroup{1, 16};

// A list of modules that stay unquantized, in one of the ways of ModuleNames.
using MakeNames = ModuleNames (*)(const std::string& entry, const std::string& what);

void leave_out(QuantRules& rules,
               const ConfigFields& fields,
               std::string_view key,
               MakeNames names) {
  if (!fields.has(key)) {
    return;
  }
  for (const std::string& entry : fields.strings(key)) {
    const std::string label = fmt::format("{} {}", key, in_quotes(entry));
    rules.add(
        {names(entry, fields.place(key) + " " + in_quotes(entry)), left_out_by(label), label});
  }
}

// group_size of `fields`: {1, g}, or per row where it is -1.  Codes of 4 bits share bytes, so that
// groups of them are even.
GroupShape read_group_size(const ConfigFields& fields, int64_t bits) {
  if (fields.integer("group_size", -1, kMaxBlock) == -1) {
    return GroupShape::per_token();
  }
  const int64_t size = fields.integer("group_size", 1, kMaxBlock);
  if (bits == 4 && size % 2 != 0) {
    fields.unsupported("group_size", "multiples of 2");
  }
  return {1, size};
}

std::string bits_name(std::string_view method, int64_t bits) {
  return fmt::format("{} int{}", method, bits);
}

QuantFormat int_format(int64_t bits) {
  return bits == 4 ? QuantFormat::kInt4 : QuantFormat::kInt8;
}

WeightScheme mxfp8(std::string name, bool quantizes_activations) {
  return {.stored = WeightFormat::kMxfp8,
          .name = std::move(name),
          .format = QuantFormat::kMxfp8,
          .group = kMxGroup,
          .activations = quantizes_activations ? ActivationScheme::kMx : ActivationScheme::kNone};
}

WeightScheme mxfp4(WeightFormat stored, std::string name) {
  return {
      .stored = stored, .name = std::move(name), .format = QuantFormat::kMxfp4, .group = kMxGroup};
}

// -- fp8 and mxfp8 of transformers, DeepSeek, Qwen, MiniMax --

WeightScheme read_fp8_weights(const ConfigFields& fields, bool is_ue8m0) {
  const std::string activations = fields.string_or("activation_scheme", "dynamic");
  if (activations != "dynamic" && activations != "static") {
    fields.unsupported("activation_scheme", "dynamic, static");
  }
  WeightScheme scheme = {.stored = WeightFormat::kFp8Tensor,
                         .name = "fp8 per tensor",
                         .format = QuantFormat::kFp8,
                         .activations = activations == "static" ? ActivationScheme::kPerTensor
                                                                : ActivationScheme::kPerToken};
  if (!fields.has("weight_block_size")) {
    return scheme;
  }
  const std::vector<int64_t> block = fields.integers("weight_block_size", 1, kMaxBlock);
  if (block.size() != 2) {
    fields.refuse("weight_block_size", "2 integers");
  }
  if (activations != "dynamic") {
    fields.unsupported("activation_scheme", "dynamic with weight_block_size");
  }
  scheme.group = {block[0], block[1]};
  if (is_ue8m0 && scheme.group == kMxGroup) {
    return mxfp8("mxfp8", true);
  }
  scheme.stored = WeightFormat::kFp8Block;
  scheme.name = "fp8";
  scheme.activations = is_ue8m0 ? ActivationScheme::kPerBlockUe8m0 : ActivationScheme::kPerBlock;
  return scheme;
}

QuantRules read_fp8(const ConfigFields& fields, const std::string& expert_dtype) {
  if (fields.string_or("fmt", "e4m3") != "e4m3") {
    fields.unsupported("fmt", "e4m3");
  }
  const std::string scale_format = fields.string_or("scale_fmt", "float");
  if (scale_format != "float" && scale_format != "ue8m0") {
    fields.unsupported("scale_fmt", "float, ue8m0");
  }
  QuantRules rules(read_fp8_weights(fields, scale_format == "ue8m0"));
  leave_out(rules, fields, "modules_to_not_convert", ModuleNames::part);
  leave_out(rules, fields, "ignored_layers", ModuleNames::part);
  if (expert_dtype == "fp4") {  // of routed experts; shared ones are in blocks
    const std::string label = "expert_dtype 'fp4'";
    rules.add({ModuleNames::like(R"(.*\.experts\.)", label), mxfp4(WeightFormat::kMxfp4, "mxfp4"),
               label});
  }
  return rules;
}

QuantRules read_mxfp8(const ConfigFields& fields, const std::string&) {
  if (fields.has("weight_block_size") &&
      fields.integers("weight_block_size", 1, kMaxBlock) != std::vector<int64_t>{1, 32}) {
    fields.unsupported("weight_block_size", "[1, 32] of mxfp8");
  }
  QuantRules rules(mxfp8("mxfp8", true));
  leave_out(rules, fields, "modules_to_not_convert", ModuleNames::part);
  leave_out(rules, fields, "ignored_layers", ModuleNames::part);
  return rules;
}

// -- compressed-tensors --

// What the activations of a group of compressed-tensors are; `group` has input_activations.
struct CompressedActivations {
  std::string type;
  int64_t bits = 0;
  std::string strategy;
  int64_t group_size = 0;
  bool is_dynamic = false;
  bool is_symmetric = true;
};

CompressedActivations read_activations(const ConfigFields& group) {
  const ConfigFields acts = group.object("input_activations");
  CompressedActivations result;
  result.type = acts.string_or("type", "int");
  result.bits = acts.integer("num_bits", 1, 64);
  result.strategy = acts.string_or("strategy", "token");
  result.group_size = acts.integer_or("group_size", 0, -1, kMaxBlock);
  // nvfp4 has "local": scales of groups are dynamic, the global scale is static.
  result.is_dynamic = acts.is_string("dynamic") ? acts.string("dynamic") == "true"
                                                : acts.boolean_or("dynamic", false);
  result.is_symmetric = acts.boolean_or("symmetric", true);
  return result;
}

// How activations of `group` are quantized beside weights of `scheme`; throws for what has no
// kernel.
ActivationScheme activations_of(const ConfigFields& group, const WeightScheme& scheme) {
  if (!group.has("input_activations")) {
    return ActivationScheme::kNone;
  }
  const CompressedActivations acts = read_activations(group);
  const bool is_like_weights =
      acts.is_symmetric &&
      (scheme.format == QuantFormat::kInt8 ? acts.type == "int" && acts.bits == 8
       : scheme.format == QuantFormat::kFp8 || scheme.format == QuantFormat::kMxfp8
           ? acts.type == "float" && acts.bits == 8
           : acts.type == "float" && acts.bits == 4);
  const bool is_per_tensor = acts.strategy == "tensor";
  std::string_view supported = "null";
  switch (scheme.stored) {
    case WeightFormat::kFp8Channel:
    case WeightFormat::kFp8Tensor:
      if (is_like_weights && acts.is_dynamic && (acts.strategy == "token" || is_per_tensor)) {
        return ActivationScheme::kPerToken;  // finer than per tensor
      }
      if (is_like_weights && !acts.is_dynamic && is_per_tensor) {
        return ActivationScheme::kPerTensor;
      }
      supported = "null, or 8-bit float, symmetric, dynamic per token or static per tensor";
      break;
    case WeightFormat::kFp8Block:
      if (is_like_weights && acts.is_dynamic && acts.strategy == "group" &&
          acts.group_size == scheme.group.col) {
        return ActivationScheme::kPerBlock;
      }
      supported = "null, or 8-bit float, dynamic in groups as wide as the weights' blocks";
      break;
    case WeightFormat::kInt8:
      if (is_like_weights && acts.is_dynamic && acts.strategy == "token" &&
          scheme.group.is_per_token()) {
        return ActivationScheme::kPerToken;
      }
      supported = scheme.group.is_per_token()
                      ? std::string_view("null, or 8-bit int, symmetric, dynamic per token")
                      : std::string_view("null with int8 weights in groups");
      break;
    case WeightFormat::kMxfp4:
    case WeightFormat::kMxfp8:
      if (is_like_weights && acts.is_dynamic && acts.strategy == "group" &&
          acts.group_size == kMxGroup.col) {
        return ActivationScheme::kMx;
      }
      supported = "null, or float in dynamic groups of 32, with as many bits as the weights";
      break;
    case WeightFormat::kNvfp4Packed:
      if (is_like_weights && acts.strategy == "tensor_group" && acts.group_size == kNvGroup.col) {
        return acts.is_dynamic ? ActivationScheme::kNvfp4Dynamic : ActivationScheme::kNvfp4;
      }
      supported = "null, or 4-bit float in groups of 16 (tensor_group)";
      break;
    default:
      supported = "null with packed weights";
  }
  group.unsupported("input_activations", supported);
}

// block_structure is [rows, columns], or "ROWSxCOLUMNS" in old files.
GroupShape read_block(const ConfigFields& weights) {
  if (weights.is_string("block_structure")) {
    if (weights.string("block_structure") != "128x128") {
      weights.unsupported("block_structure", "[rows, columns], 128x128");
    }
    return {128, 128};
  }
  const std::vector<int64_t> block = weights.integers("block_structure", 1, kMaxBlock);
  if (block.size() != 2) {
    weights.refuse("block_structure", "2 integers");
  }
  return {block[0], block[1]};
}

// The weights of a group, without its activations.
WeightScheme compressed_weights(const ConfigFields& group, const std::string& format) {
  const ConfigFields weights = group.object("weights");
  const std::string type = weights.string_or("type", "int");
  const int64_t bits = weights.integer("num_bits", 1, 64);
  const std::string strategy = weights.string_or("strategy", "");
  const bool is_symmetric = weights.boolean_or("symmetric", true);
  const bool is_naive = format == "naive-quantized";  // codes as they are, as the two after it
  const bool is_channel = strategy == "channel";
  if (weights.has("actorder")) {
    // Scales of "weight" and "static" belong to columns in their own order.
    const std::string order = weights.is_string("actorder") ? weights.string("actorder") : "group";
    if (order != "weight" && order != "static") {
      weights.unsupported("actorder", "null, weight, static");
    }
  }
  const auto group_of = [&](int64_t code_bits) {
    return is_channel ? GroupShape::per_token() : read_group_size(weights, code_bits);
  };
  WeightScheme scheme;
  if (type == "int" && format == "pack-quantized" && (bits == 4 || bits == 8) &&
      (strategy == "group" || is_channel)) {
    scheme = {.stored = WeightFormat::kPackedInt,
              .name = bits_name("compressed-tensors", bits),
              .format = int_format(bits),
              .group = group_of(bits),
              .has_zero_points = !is_symmetric};
  } else if (type == "int" && bits == 8 && (format == "int-quantized" || is_naive) &&
             (strategy == "group" || is_channel)) {
    scheme = {.stored = WeightFormat::kInt8,
              .name = "compressed-tensors int8",
              .format = QuantFormat::kInt8,
              .group = group_of(bits),
              .has_zero_points = !is_symmetric};
  } else if (type == "float" && bits == 8 && is_symmetric &&
             (format == "float-quantized" || is_naive) &&
             (is_channel || strategy == "tensor" || strategy == "block")) {
    scheme = {.stored = is_channel             ? WeightFormat::kFp8Channel
                        : strategy == "tensor" ? WeightFormat::kFp8Tensor
                                               : WeightFormat::kFp8Block,
              .name = strategy == "block" ? "compressed-tensors fp8 blocks"
                      : is_channel        ? "compressed-tensors fp8"
                                          : "compressed-tensors fp8 per tensor",
              .format = QuantFormat::kFp8,
              .group = strategy == "block" ? read_block(weights) : GroupShape::per_token()};
  } else if (type == "float" && bits == 8 && format == "mxfp8-quantized") {
    scheme = mxfp8("compressed-tensors mxfp8", false);
  } else if (type == "float" && bits == 4 && format == "mxfp4-pack-quantized") {
    scheme = mxfp4(WeightFormat::kMxfp4, "compressed-tensors mxfp4");
  } else if (type == "float" && bits == 4 && format == "nvfp4-pack-quantized") {
    scheme = {.stored = WeightFormat::kNvfp4Packed,
              .name = "compressed-tensors nvfp4",
              .format = QuantFormat::kNvfp4,
              .group = kNvGroup};
  } else {
    group.unsupported(
        "weights",
        fmt::format("int in 4 or 8 bits by groups or channels (pack-quantized), int in 8 "
                    "(int-quantized), symmetric 8-bit float by channels, blocks or tensors "
                    "(float-quantized), mxfp4-pack-quantized, mxfp8-quantized, "
                    "nvfp4-pack-quantized; the format here is {}",
                    in_quotes(format)));
  }
  const bool is_fixed = scheme.group == kMxGroup || scheme.group == kNvGroup;
  if (is_fixed && scheme.format != QuantFormat::kInt4 && scheme.format != QuantFormat::kInt8 &&
      weights.integer_or("group_size", scheme.group.col, 1, kMaxBlock) != scheme.group.col) {
    weights.unsupported("group_size", fmt::format("{}", scheme.group.col));
  }
  return scheme;
}

// Weights may be rotated or sparse besides, which tensors of a dense format do not tell.
void expect_plain(const ConfigFields& fields) {
  if (fields.has("transform_config") && !fields.object("transform_config").keys().empty()) {
    fields.unsupported("transform_config", "{}");
  }
  if (fields.has("sparsity_config") &&
      fields.object("sparsity_config").string_or("format", "dense") != "dense") {
    fields.object("sparsity_config").unsupported("format", "dense");
  }
}

QuantRules read_compressed_tensors(const ConfigFields& fields, const std::string&) {
  expect_plain(fields);
  const std::string format = fields.string_or("format", "dense");
  const ConfigFields groups = fields.object("config_groups");
  struct Target {
    std::string entry;
    WeightScheme scheme;
  };
  std::vector<Target> named;
  std::optional<Target> by_class;  // such as "Linear"; names count before it
  std::optional<WeightScheme> first;
  for (const std::string& key : groups.keys()) {
    const ConfigFields group = groups.object(key);
    if (!group.has("weights")) {  // quantizes only activations, such as those of attention
      continue;
    }
    WeightScheme scheme = compressed_weights(group, group.string_or("format", format));
    scheme.activations = activations_of(group, scheme);
    first = first ? first : scheme;
    const std::vector<std::string> targets =
        group.has("targets") ? group.strings("targets") : std::vector<std::string>{"Linear"};
    for (const std::string& entry : targets) {
      if (entry.starts_with("re:") || entry.find('.') != std::string::npos) {
        named.push_back({entry, scheme});
      } else if (entry == "Linear") {
        if (by_class && by_class->scheme != scheme) {
          group.unsupported("targets", "the class Linear in one group, names in others");
        }
        by_class = {entry, scheme};
      }
    }
  }
  if (!first) {
    fields.refuse("config_groups", "at least one group with weights");
  }
  // Where all targets are names, what is not named is not quantized.  A group without targets that
  // can be read stands for everything, since the tensors tell which modules are quantized.
  QuantRules rules(by_class ? by_class->scheme : *first);
  leave_out(rules, fields, "ignore", ModuleNames::named);
  for (const Target& target : named) {
    const std::string label = fmt::format("targets {}", in_quotes(target.entry));
    rules.add({ModuleNames::named(target.entry, fields.place("config_groups") + ": " + label),
               target.scheme, label});
  }
  return rules;
}

// -- ModelOpt --

WeightScheme modelopt_scheme(const ConfigFields& fields) {
  const std::string algo = fields.string("quant_algo");
  const auto expect_group = [&](int64_t size) {
    if (fields.integer_or("group_size", size, 1, kMaxBlock) != size) {
      fields.refuse("group_size", fmt::format("{}", size));
    }
  };
  if (algo == "NVFP4" || algo == "W4A16_NVFP4") {
    expect_group(kNvGroup.col);
    return {.stored = WeightFormat::kNvfp4,
            .name = "nvfp4",
            .format = QuantFormat::kNvfp4,
            .group = kNvGroup,
            .activations = algo == "NVFP4" ? ActivationScheme::kNvfp4 : ActivationScheme::kNone};
  }
  if (algo == "MXFP8") {
    expect_group(kMxGroup.col);
    return mxfp8("modelopt mxfp8", true);
  }
  WeightScheme scheme = {.format = QuantFormat::kFp8};
  if (algo == "FP8") {
    scheme.stored = WeightFormat::kFp8Tensor;
    scheme.name = "modelopt fp8";
    scheme.activations = ActivationScheme::kPerTensor;
  } else if (algo == "FP8_PER_CHANNEL_PER_TOKEN") {
    scheme.stored = WeightFormat::kFp8Channel;
    scheme.name = "modelopt fp8 per channel";
    scheme.activations = ActivationScheme::kPerToken;
  } else if (algo == "FP8_PB_WO") {
    scheme.stored = WeightFormat::kFp8Block;
    scheme.name = "modelopt fp8 blocks";  // "weight only"
    scheme.group = {128, 128};
  } else {
    fields.unsupported("quant_algo",
                       "NVFP4, W4A16_NVFP4, MXFP8, FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, "
                       "MIXED_PRECISION");
  }
  return scheme;
}

QuantRules read_modelopt(const ConfigFields& fields, const std::string&) {
  const bool is_mixed = fields.string("quant_algo") == "MIXED_PRECISION";
  QuantRules rules = is_mixed ? QuantRules() : QuantRules(modelopt_scheme(fields));
  if (is_mixed) {
    const ConfigFields layers = fields.object("quantized_layers");
    std::vector<QuantRule> named;
    for (const std::string& name : layers.keys()) {
      const std::string label = fmt::format("quantized_layers {}", in_quotes(name));
      const WeightScheme scheme = modelopt_scheme(layers.object(name));
      if (named.empty()) {
        rules = QuantRules(scheme);
      }
      named.push_back({ModuleNames::glob(name, fields.place(label)), scheme, label});
    }
    if (named.empty()) {
      fields.refuse("quantized_layers", "at least one layer");
    }
    for (QuantRule& rule : named) {
      rules.add(std::move(rule));
    }
  }
  leave_out(rules, fields, "exclude_modules", ModuleNames::glob);
  leave_out(rules, fields, "ignore", ModuleNames::glob);
  return rules;
}

// -- GPTQ and AWQ --

// Fields that `rule` lacks are those of `fields`.  desc_act is not read: g_idx tells the order of
// the groups, see ExpertSource::group_order().
WeightScheme gptq_scheme(const ConfigFields& fields, const ConfigFields& rule) {
  const auto of = [&](std::string_view key) -> const ConfigFields& {
    return rule.has(key) ? rule : fields;
  };
  const int64_t bits = of("bits").integer("bits", 1, 64);
  if (bits != 4 && bits != 8) {
    of("bits").unsupported("bits", "4, 8");
  }
  const std::string_view key = fields.has("checkpoint_format") ? "checkpoint_format" : "format";
  const std::string version = fields.string_or(key, "gptq");
  if (version != "gptq" && version != "gptq_v2") {
    fields.unsupported(key, "gptq, gptq_v2");
  }
  const ConfigFields& sized = of("group_size");
  return {.stored = WeightFormat::kGptq,
          .name = bits_name("gptq", bits),
          .format = int_format(bits),
          .group = read_group_size(sized, bits),
          .has_zero_points = !of("sym").boolean_or("sym", true),
          .zero_point_offset = version == "gptq" ? 1 : 0};
}

// Rules "+:PATTERN" replace some fields for the modules that they match; "-:PATTERN" leaves them
// unquantized.
QuantRules read_gptq(const ConfigFields& fields, const std::string&) {
  QuantRules rules(gptq_scheme(fields, fields));
  leave_out(rules, fields, "modules_to_not_convert", ModuleNames::part);
  if (!fields.has("dynamic")) {
    return rules;
  }
  rules.end_order();
  const ConfigFields dynamic = fields.object("dynamic");
  for (const std::string& key : dynamic.keys()) {
    const std::string label = fmt::format("dynamic {}", in_quotes(key));
    const bool leaves_out = key.starts_with("-:");
    const std::string pattern = leaves_out || key.starts_with("+:") ? key.substr(2) : key;
    const WeightScheme scheme =
        leaves_out ? left_out_by(label) : gptq_scheme(fields, dynamic.object(key));
    rules.add({ModuleNames::like(pattern, fields.place(label)), scheme, label});
  }
  return rules;
}

QuantRules read_awq(const ConfigFields& fields, const std::string&) {
  const std::string_view bits = fields.has("w_bit") ? "w_bit" : "bits";
  if (fields.integer(bits, 1, 64) != 4) {
    fields.unsupported(bits, "4");
  }
  const std::string_view key = fields.has("version") ? "version" : "format";
  const std::string version = fields.string_or(key, "gemm");
  if (version != "gemm" && version != "GEMM") {
    fields.unsupported(key, "gemm");
  }
  QuantRules rules(WeightScheme{.stored = WeightFormat::kAwq,
                                .name = "awq int4",
                                .format = QuantFormat::kInt4,
                                .group = read_group_size(fields, 4),
                                .has_zero_points = true});
  leave_out(rules, fields, "modules_to_not_convert", ModuleNames::part);
  return rules;
}

// -- the others --

QuantRules read_fbgemm(const ConfigFields& fields, const std::string&) {
  QuantRules rules(WeightScheme{.stored = WeightFormat::kFp8Channel,
                                .name = "fbgemm fp8",
                                .format = QuantFormat::kFp8,
                                .activations = ActivationScheme::kPerToken});
  leave_out(rules, fields, "modules_to_not_convert", ModuleNames::part);
  return rules;
}

QuantRules read_mxfp4(const ConfigFields& fields, const std::string&) {
  QuantRules rules(mxfp4(WeightFormat::kMxfp4Fused, "mxfp4"));
  leave_out(rules, fields, "modules_to_not_convert", ModuleNames::part);
  return rules;
}

struct Method {
  std::string_view name;
  QuantRules (*read)(const ConfigFields& fields, const std::string& expert_dtype);
};

constexpr Method kMethods[] = {
    {"fp8", read_fp8},
    {"compressed-tensors", read_compressed_tensors},
    {"gptq", read_gptq},
    {"awq", read_awq},
    {"mxfp4", read_mxfp4},
    {"modelopt", read_modelopt},
    {"modelopt_fp4", read_modelopt},
    {"fbgemm_fp8", read_fbgemm},
    {"mxfp8", read_mxfp8},
};

}  // namespace

QuantRules read_quant_rules(const ConfigFields& quantization, const std::string& expert_dtype) {
  const std::string name = quantization.string("quant_method");
  std::string known;
  for (const Method& method : kMethods) {
    if (method.name == name) {
      return method.read(quantization, expert_dtype);
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", method.name);
  }
  quantization.unsupported("quant_method", known);
}

}  // namespace moebius::checkpoint
