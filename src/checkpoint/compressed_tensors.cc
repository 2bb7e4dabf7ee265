// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/compressed_tensors.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <vector>

#include "checkpoint/quant_fields.h"
#include "checkpoint/safetensors_header.h"

namespace moebius::checkpoint {

namespace {

// Holds what a group of compressed-tensors says in its input_activations.
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

// Returns how activations of `group` are quantized beside weights of `scheme`.  Throws for what has
// no kernel.
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

}  // namespace

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
  // Modules that are not named are not quantized where all targets are names.  A group without
  // targets that can be read stands for everything, since the tensors tell which modules are
  // quantized.
  QuantRules rules(by_class ? by_class->scheme : *first);
  leave_out(rules, fields, "ignore", ModuleNames::named);
  for (const Target& target : named) {
    const std::string label = fmt::format("targets {}", in_quotes(target.entry));
    rules.add({ModuleNames::named(target.entry, fields.place("config_groups") + ": " + label),
               target.scheme, label});
  }
  return rules;
}

}  // namespace moebius::checkpoint
