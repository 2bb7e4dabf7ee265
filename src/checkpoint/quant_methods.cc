// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads quantization_config, in the words of each method that makes checkpoints.  The method that
// has groups of modules is read in compressed_tensors.cc.
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/compressed_tensors.h"
#include "checkpoint/quant_fields.h"
#include "checkpoint/quant_rules.h"
#include "checkpoint/safetensors_header.h"

namespace moebius::checkpoint {

namespace {

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
