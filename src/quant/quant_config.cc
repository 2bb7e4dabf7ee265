// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/quant_config.h"

#include <fmt/format.h>

#include <utility>

#include "moebius/error.h"
#include "quant/group_rule.h"
#include "quant/groups.h"
#include "quant/scale_grid.h"

namespace moebius {

namespace {

struct FormatInfo {
  std::string_view name;
  QuantFormat format;
  DType storage;
  DType scale;
  int64_t group_cols;    // elements of a row that share a scale; 0: the config decides
  quant::Encode encode;  // with one scale for the whole tensor, or with groups of group_cols
};

constexpr FormatInfo kFormats[] = {
    {"fp8", QuantFormat::kFp8, DType::kF8E4M3, DType::kF32, 0, quant::Encode::kE4M3Multiply},
    {"int8", QuantFormat::kInt8, DType::kI8, DType::kF32, 0, quant::Encode::kI8NearestDivide},
    {"int4", QuantFormat::kInt4, DType::kU4, DType::kF32, 0, quant::Encode::kU4Divide},
    {"mxfp4", QuantFormat::kMxfp4, DType::kF4E2M1, DType::kE8M0, 32, quant::Encode::kE2M1Multiply},
    {"mxfp6_e3m2", QuantFormat::kMxfp6E3M2, DType::kF6E3M2, DType::kE8M0, 32,
     quant::Encode::kE3M2Multiply},
    {"mxfp6_e2m3", QuantFormat::kMxfp6E2M3, DType::kF6E2M3, DType::kE8M0, 32,
     quant::Encode::kE2M3Multiply},
    {"mxfp8", QuantFormat::kMxfp8, DType::kF8E4M3, DType::kE8M0, 32, quant::Encode::kE4M3Overflow},
    {"nvfp4", QuantFormat::kNvfp4, DType::kF4E2M1, DType::kF8E4M3, 16,
     quant::Encode::kE2M1Multiply},
};

const FormatInfo& info(QuantFormat format) {
  for (const FormatInfo& entry : kFormats) {
    if (entry.format == format) {
      return entry;
    }
  }
  throw InvalidArgument(fmt::format("quant format {} does not exist", static_cast<int>(format)));
}

std::string to_string(const GroupShape& shape) {
  return fmt::format("{{{}, {}}}", shape.row, shape.col);
}

bool is_block(const GroupShape& shape) {
  return shape.row >= 0 && shape.col >= 1;
}

// Only GEMM2's rows do not exist yet when a call begins; those of GEMM1 can come as codes.
void validate_brought_scales(const QuantDesc& desc, std::string_view which) {
  if (!desc.calls_bring_scales) {
    return;
  }
  expect(which == "a2", [&] {
    return fmt::format("calls bring scales of {}: they bring those of a2 alone", which);
  });
  const bool is_code = desc.format == QuantFormat::kFp8 || desc.format == QuantFormat::kInt8;
  expect(is_code && desc.shape && desc.shape->is_per_token(), [&] {
    return fmt::format(
        "calls bring scales of {}, which is {} in groups of {}: they are of fp8 or int8 per token "
        "{{1, -1}}",
        which, desc.format ? name(*desc.format) : "not quantized",
        to_string(desc.shape.value_or(GroupShape{})));
  });
  expect(!desc.scale,
         [&] { return fmt::format("calls bring scales of {}, and it has a scale, too", which); });
}

void validate_activation(const QuantDesc& desc, std::string_view which) {
  expect(desc.format != QuantFormat::kInt4, [&] {
    return fmt::format("{} is int4: int4 is a format of weights, not of activations", which);
  });
  if (desc.shape) {
    expect(desc.shape->is_per_tensor() || desc.shape->is_per_token() || is_block(*desc.shape), [&] {
      return fmt::format(
          "{} has groups of {}: activations are scaled per tensor {{-1, -1}}, per token "
          "{{1, -1}} or by blocks {{rows >= 0, columns >= 1}}",
          which, to_string(*desc.shape));
    });
  }
  expect(!desc.zero_point.defined(), [&] {
    return fmt::format("{} has zero points: only int4 and int8 weights have them", which);
  });
  const bool is_fp8_blocks =
      desc.format == QuantFormat::kFp8 && desc.shape && is_block(*desc.shape);
  expect(!desc.power_of_two_scale || is_fp8_blocks, [&] {
    return fmt::format(
        "{} has power-of-two (UE8M0) scales and is {} in groups of {}: they are of "
        "fp8 activations scaled by blocks",
        which, desc.format ? name(*desc.format) : "not quantized",
        to_string(desc.shape.value_or(GroupShape{})));
  });
  validate_brought_scales(desc, which);
}

// Builds the four descs, with both GEMMs treated alike, as every builder needs them.
QuantConfig assemble(std::optional<QuantFormat> activation,
                     std::optional<GroupShape> a_shape,
                     std::optional<QuantFormat> weight,
                     std::optional<GroupShape> w_shape,
                     QuantTensors&& t) {
  const auto of_weight = [&](Tensor& scale, Tensor& alphas, Tensor& zero_point, Tensor& bias) {
    return QuantDesc{
        weight,         w_shape, std::move(scale), std::move(alphas), std::move(zero_point),
        std::move(bias)};
  };
  QuantConfig config;
  config.a1 = {activation, a_shape, std::move(t.a1_scale), std::move(t.a1_gscale), {}, {}};
  config.a2 = {activation, a_shape, std::move(t.a2_scale), std::move(t.a2_gscale), {}, {}};
  config.w1 = of_weight(t.w1_scale, t.g1_alphas, t.w1_zero_point, t.w1_bias);
  config.w2 = of_weight(t.w2_scale, t.g2_alphas, t.w2_zero_point, t.w2_bias);
  config.validate();
  return config;
}

}  // namespace

// Many calls read rows of weights, so this function formats messages only for a refusal.
void quant::expect_weight_desc(const QuantDesc& desc, std::string_view which) {
  const bool is_blocks = desc.shape && is_block(*desc.shape);
  if (desc.shape && !desc.shape->is_per_tensor() && !desc.shape->is_per_token() && !is_blocks) {
    expect(false,
           fmt::format("{} has groups of {}: weights are scaled per tensor {{-1, -1}}, per channel "
                       "{{1, -1}} or by blocks {{rows >= 0, columns >= 1}}",
                       which, to_string(*desc.shape)));
  }
  const int pack = desc.format ? pack_factor(storage_dtype(*desc.format)) : 1;
  if (is_blocks && desc.shape->col % pack != 0) {  // a group would begin within a byte
    expect(false, fmt::format("{} is {} in groups of {}: their columns must be a multiple of {}",
                              which, name(*desc.format), to_string(*desc.shape), pack));
  }
  const bool is_integer = desc.format == QuantFormat::kInt4 || desc.format == QuantFormat::kInt8;
  if (desc.zero_point && !is_integer) {
    expect(false, fmt::format("{} has zero points but is {}: only int4 and int8 weights have them",
                              which, desc.format ? name(*desc.format) : "not quantized"));
  }
  expect(!desc.calls_bring_scales, "calls bring scales of weights: they bring those of a2 alone");
  if (desc.power_of_two_scale) {
    expect(false, fmt::format("{} has power-of-two (UE8M0) scales: they are of fp8 activations "
                              "scaled by blocks, not of weights",
                              which));
  }
}

std::string_view name(QuantFormat format) {
  return info(format).name;
}

std::optional<QuantFormat> quant_format_from_name(std::string_view name) {
  for (const FormatInfo& entry : kFormats) {
    if (entry.name == name) {
      return entry.format;
    }
  }
  return std::nullopt;
}

DType storage_dtype(QuantFormat format) {
  return info(format).storage;
}

bool is_ocp_mx(QuantFormat format) {
  return info(format).scale == DType::kE8M0;
}

int64_t quant::fixed_group_cols(QuantFormat format) {
  return info(format).group_cols;
}

DType quant::scale_dtype(QuantFormat format) {
  return info(format).scale;
}

quant::Code quant::code_of(QuantFormat format) {
  return code_of(info(format).encode);
}

quant::Encode quant::encode_of(const QuantizeSpec& spec) {
  const bool is_per_tensor = spec.group.is_per_tensor();
  if (spec.format == QuantFormat::kFp8 && !is_per_tensor) {
    return Encode::kE4M3Divide;
  }
  if (spec.format == QuantFormat::kInt8 && !is_per_tensor) {
    return spec.group.is_per_token() ? Encode::kI8AwayMultiply : Encode::kI8TruncateDivide;
  }
  return info(spec.format).encode;
}

QuantConfig QuantConfig::make(std::optional<QuantFormat> activation,
                              bool per_act_token,
                              bool per_out_channel,
                              std::optional<GroupShape> block,
                              QuantTensors tensors,
                              std::optional<QuantFormat> weight) {
  std::optional<GroupShape> a_shape;
  std::optional<GroupShape> w_shape;
  if (block) {
    expect(!per_act_token, [&] {
      return fmt::format("block {} together with per-token activation scales", to_string(*block));
    });
    expect(!per_out_channel, [&] {
      return fmt::format("block {} together with per-channel weight scales", to_string(*block));
    });
    expect(is_block(*block), [&] {
      return fmt::format("block {} is not {{rows >= 0, columns >= 1}}", to_string(*block));
    });
    a_shape = w_shape = block;
  } else {
    if (per_act_token) {
      a_shape = GroupShape::per_token();
    } else if (activation) {
      a_shape = GroupShape::per_tensor();
    }
    if (per_out_channel) {
      w_shape = GroupShape::per_token();
    }
  }
  return assemble(activation, a_shape, weight ? weight : activation, w_shape, std::move(tensors));
}

QuantConfig QuantConfig::biased(Tensor w1_bias, Tensor w2_bias) {
  QuantTensors tensors;
  tensors.w1_bias = std::move(w1_bias);
  tensors.w2_bias = std::move(w2_bias);
  return assemble(std::nullopt, std::nullopt, std::nullopt, std::nullopt, std::move(tensors));
}

QuantConfig QuantConfig::fp8_w8a8(QuantTensors tensors,
                                  bool per_act_token,
                                  bool per_out_channel,
                                  std::optional<GroupShape> block) {
  return make(QuantFormat::kFp8, per_act_token, per_out_channel, block, std::move(tensors));
}

QuantConfig QuantConfig::int8_w8a8(QuantTensors tensors, bool per_act_token) {
  return make(QuantFormat::kInt8, per_act_token, false, std::nullopt, std::move(tensors));
}

QuantConfig QuantConfig::int8_w8a16(QuantTensors tensors, std::optional<GroupShape> block) {
  return assemble(std::nullopt, block, QuantFormat::kInt8, block, std::move(tensors));
}

QuantConfig QuantConfig::int4_w4a16(QuantTensors tensors, std::optional<GroupShape> block) {
  return assemble(std::nullopt, block, QuantFormat::kInt4, block, std::move(tensors));
}

QuantConfig QuantConfig::mxfp4_w4a16(QuantTensors tensors) {
  return assemble(std::nullopt, std::nullopt, QuantFormat::kMxfp4, std::nullopt,
                  std::move(tensors));
}

QuantConfig QuantConfig::ocp_mx(QuantFormat activation,
                                QuantTensors tensors,
                                std::optional<QuantFormat> weight,
                                std::optional<GroupShape> block) {
  expect(is_ocp_mx(activation) || activation == QuantFormat::kFp8, [&] {
    return fmt::format(
        "activation format {} is neither an OCP MX format (mxfp4, mxfp6_e3m2, "
        "mxfp6_e2m3, mxfp8) nor fp8",
        name(activation));
  });
  if (activation == QuantFormat::kFp8) {
    const std::string_view given = weight ? name(*weight) : "not given";
    expect(weight && is_ocp_mx(*weight), [&] {
      return fmt::format(
          "activations are fp8 and the weights' format is {}, expected mxfp4, "
          "mxfp6_e3m2, mxfp6_e2m3 or mxfp8",
          given);
    });
    expect(!block, [&] {
      return fmt::format("block {} of fp8 activations beside {} weights, expected per tensor",
                         to_string(block.value_or(GroupShape{})), given);
    });
  }
  return make(activation, false, false, block, std::move(tensors), weight);
}

QuantConfig QuantConfig::nvfp4(QuantTensors tensors) {
  return make(QuantFormat::kNvfp4, false, false, std::nullopt, std::move(tensors));
}

void QuantConfig::validate() const {
  validate_activation(a1, "a1");
  validate_activation(a2, "a2");
  quant::expect_weight_desc(w1, "w1");
  quant::expect_weight_desc(w2, "w2");
  expect(!(is_per_act_token() && w1.shape && is_block(*w1.shape)), [&] {
    return fmt::format("w1 is scaled by blocks {} together with per-token activation scales",
                       to_string(w1.shape.value_or(GroupShape{})));
  });
  expect(!(is_block_quantized() && per_out_channel()), [&] {
    return fmt::format("a1 is scaled by blocks {} together with per-channel weight scales",
                       to_string(block_shape().value_or(GroupShape{})));
  });
}

std::optional<GroupShape> QuantConfig::block_shape() const {
  if (!a1.shape || a1.shape->is_per_tensor() || a1.shape->is_per_token()) {
    return std::nullopt;
  }
  return a1.shape;
}

std::optional<std::string> QuantConfig::ocp_mx_scheme() const {
  if (!w1.format || !is_ocp_mx(*w1.format)) {
    return std::nullopt;
  }
  if (!a1.format) {
    return fmt::format("w_{}", name(*w1.format));
  }
  if (!is_ocp_mx(*a1.format) && !(a1.format == QuantFormat::kFp8 && is_per_tensor())) {
    return std::nullopt;
  }
  return fmt::format("w_{}_a_{}", name(*w1.format), name(*a1.format));
}

std::optional<std::string> QuantConfig::config_name(DType in_dtype) const {
  if (use_fp8_w8a8()) {
    return "fp8_w8a8";
  }
  if (use_int8_w8a16()) {
    return "int8_w8a16";
  }
  if (use_int4_w4a16()) {
    return "int4_w4a16";
  }
  if (ocp_mx_scheme()) {
    return std::nullopt;  // dequantized values are multiplied, so no kernel of that name is tuned
  }
  if (in_dtype == DType::kF32) {
    return "float32";
  }
  return std::nullopt;
}

std::optional<std::array<int64_t, 2>> QuantConfig::scale_shape(int64_t max_tokens,
                                                               int64_t hidden) const {
  if (!is_quantized()) {
    return std::nullopt;
  }
  if (const std::optional<GroupShape> block = block_shape()) {
    expect_ge(block->col, 1, "columns of a1's blocks");
    return std::array<int64_t, 2>{max_tokens, ceil_div(hidden, block->col)};
  }
  if (is_per_act_token()) {
    return std::array<int64_t, 2>{max_tokens, 1};
  }
  return std::array<int64_t, 2>{1, 1};
}

std::optional<std::array<int64_t, 3>> QuantConfig::batched_scale_shape(int64_t num_experts,
                                                                       int64_t max_tokens,
                                                                       int64_t hidden) const {
  const auto shape = scale_shape(max_tokens, hidden);
  if (!shape) {
    return std::nullopt;
  }
  return std::array<int64_t, 3>{num_experts, (*shape)[0], (*shape)[1]};
}

}  // namespace moebius
