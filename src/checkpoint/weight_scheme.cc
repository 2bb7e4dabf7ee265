// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/weight_scheme.h"

#include <fmt/format.h>

#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

constexpr int64_t kMaxBlock = 1 << 20;

WeightScheme read_fp8(const ConfigFields& fields) {
  if (fields.string_or("fmt", "e4m3") != "e4m3") {
    fields.unsupported("fmt", "e4m3");
  }
  if (fields.string_or("activation_scheme", "dynamic") != "dynamic") {
    fields.unsupported("activation_scheme", "dynamic");
  }
  const std::string scale_format = fields.string_or("scale_fmt", "float");
  if (scale_format != "float" && scale_format != "ue8m0") {
    fields.unsupported("scale_fmt", "float, ue8m0");
  }
  if (!fields.has("weight_block_size")) {
    fields.unsupported("weight_block_size", "fp8 with [rows, columns] of a block");
  }
  const std::vector<int64_t> block = fields.integers("weight_block_size", 1, kMaxBlock);
  if (block.size() != 2) {
    fields.refuse("weight_block_size", "2 integers");
  }
  return {.format = WeightFormat::kFp8Block,
          .name = "fp8",
          .block = {block[0], block[1]},
          .quantizes_activations = true,
          .has_ue8m0_activations = scale_format == "ue8m0"};
}

// Whether activations are quantized, which must be per token and to `bits` bits of `type`; throws
// for anything else.
bool quantizes_per_token(const ConfigFields& group, std::string_view type, int64_t bits) {
  if (!group.has("input_activations")) {
    return false;
  }
  const ConfigFields acts = group.object("input_activations");
  if (acts.string_or("type", "int") != type || acts.integer("num_bits", 1, 64) != bits ||
      acts.string_or("strategy", "token") != "token" || !acts.boolean_or("dynamic", false) ||
      !acts.boolean_or("symmetric", true)) {
    group.unsupported("input_activations",
                      fmt::format("null, or {}-bit {}, symmetric, dynamic per token", bits, type));
  }
  return true;
}

WeightScheme read_group(const ConfigFields& group, const std::string& format) {
  const ConfigFields weights = group.object("weights");
  const std::string type = weights.string_or("type", "int");
  const int64_t bits = weights.integer("num_bits", 1, 64);
  const std::string strategy = weights.string_or("strategy", "");
  const bool symmetric = weights.boolean_or("symmetric", true);
  if (weights.has("actorder")) {
    weights.unsupported("actorder", "null");
  }
  WeightScheme scheme;
  if (format == "pack-quantized" && type == "int" && bits == 4 && strategy == "group") {
    scheme = {.format = WeightFormat::kInt4Group,
              .name = "compressed-tensors int4",
              .block = {1, weights.integer("group_size", 1, kMaxBlock)},
              .is_asymmetric = !symmetric};
    if (scheme.block.col % 2 != 0) {  // two codes share a byte
      weights.unsupported("group_size", "multiples of 2");
    }
    if (group.has("input_activations")) {
      group.unsupported("input_activations", "null with int4 weights");
    }
  } else if ((type == "int" || type == "float") && format == type + "-quantized" && bits == 8 &&
             strategy == "channel" && symmetric) {
    const bool is_int = type == "int";
    scheme = {.format = is_int ? WeightFormat::kInt8Channel : WeightFormat::kFp8Channel,
              .name = is_int ? "compressed-tensors int8" : "compressed-tensors fp8",
              .quantizes_activations = quantizes_per_token(group, type, bits)};
  } else {
    group.unsupported("weights",
                      fmt::format("4-bit int groups (pack-quantized), symmetric 8-bit channels of "
                                  "int (int-quantized) or float (float-quantized); the format here "
                                  "is {}",
                                  format));
  }
  return scheme;
}

WeightScheme read_compressed_tensors(const ConfigFields& fields) {
  const std::string format = fields.string_or("format", "dense");
  const ConfigFields groups = fields.object("config_groups");
  std::optional<WeightScheme> scheme;
  for (const std::string& key : groups.keys()) {
    const ConfigFields group = groups.object(key);
    const WeightScheme next = read_group(group, group.string_or("format", format));
    if (scheme && (scheme->format != next.format || scheme->block != next.block ||
                   scheme->is_asymmetric != next.is_asymmetric ||
                   scheme->quantizes_activations != next.quantizes_activations)) {
      fields.unsupported("config_groups", "groups that are quantized alike");
    }
    scheme = next;
  }
  if (!scheme) {
    fields.refuse("config_groups", "at least one group");
  }
  return *scheme;
}

WeightScheme read_modelopt(const ConfigFields& fields) {
  if (fields.string("quant_algo") != "NVFP4") {
    fields.unsupported("quant_algo", "NVFP4");
  }
  if (fields.integer_or("group_size", 16, 1, kMaxBlock) != 16) {
    fields.refuse("group_size", "16");
  }
  return {.format = WeightFormat::kNvfp4,
          .name = "nvfp4",
          .block = {1, 16},
          .quantizes_activations = true};
}

}  // namespace

int64_t num_units(int64_t total, int64_t unit) {
  return unit == 0 ? 1 : (total + unit - 1) / unit;
}

std::vector<StoredPart> stored_parts(const WeightScheme& scheme, DType float_dtype) {
  using enum PartRole;
  switch (scheme.format) {
    case WeightFormat::kFloat:
      return {{kWeight, ".weight", float_dtype}};
    case WeightFormat::kFp8Block:
      return {{kWeight, ".weight", DType::kF8E4M3},
              {kScale, ".weight_scale_inv", DType::kF32, scheme.block.row, scheme.block.col}};
    case WeightFormat::kFp8Channel:
      return {{kWeight, ".weight", DType::kF8E4M3}, {kScale, ".weight_scale", float_dtype, 1, 0}};
    case WeightFormat::kInt8Channel:
      return {{kWeight, ".weight", DType::kI8}, {kScale, ".weight_scale", float_dtype, 1, 0}};
    case WeightFormat::kInt4Group: {
      std::vector<StoredPart> parts = {{kWeight, ".weight_packed", DType::kI32, 1, 8},
                                       {kScale, ".weight_scale", float_dtype, 1, scheme.block.col},
                                       {kWeightShape, ".weight_shape", DType::kI64}};
      if (scheme.is_asymmetric) {
        parts.push_back({kZeroPoint, ".weight_zero_point", DType::kI32, 8, scheme.block.col});
      }
      return parts;
    }
    case WeightFormat::kMxfp4:
      return {{kWeight, "_blocks", DType::kU8, 1, 2}, {kScale, "_scales", DType::kU8, 1, 32}};
    case WeightFormat::kNvfp4:
      return {{kWeight, ".weight", DType::kU8, 1, 2},
              {kScale, ".weight_scale", DType::kF8E4M3, 1, 16},
              {kGlobalScale, ".weight_scale_2", DType::kF32},
              {kInputScale, ".input_scale", DType::kF32}};
  }
  return {};
}

std::optional<QuantFormat> quant_format(WeightFormat format) {
  constexpr std::optional<QuantFormat> kFormats[] = {
      std::nullopt,       QuantFormat::kFp8,   QuantFormat::kFp8,  QuantFormat::kInt8,
      QuantFormat::kInt4, QuantFormat::kMxfp4, QuantFormat::kNvfp4};
  return kFormats[static_cast<size_t>(format)];
}

WeightScheme read_weight_scheme(const ConfigFields& quantization, std::string_view model_type) {
  const std::string method = quantization.string("quant_method");
  if (method == "fp8") {
    return read_fp8(quantization);
  }
  if (method == "compressed-tensors") {
    return read_compressed_tensors(quantization);
  }
  if (method == "modelopt" || method == "modelopt_fp4") {
    return read_modelopt(quantization);
  }
  if (method == "mxfp4") {
    if (model_type != "gpt_oss") {
      quantization.unsupported("quant_method",
                               fmt::format("mxfp4 for gpt_oss only, this is {}", model_type));
    }
    return {.format = WeightFormat::kMxfp4, .name = "mxfp4", .block = {1, 32}};
  }
  quantization.unsupported("quant_method", "fp8, compressed-tensors, mxfp4, modelopt");
}

}  // namespace moebius::checkpoint
