// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "c_api/expert_weights.h"

#include <fmt/format.h>

#include "c_api/convert.h"
#include "c_api/structs.h"

namespace moebius::c_api {

namespace {

static_assert(MOEBIUS_SWIGLU_STEP == static_cast<int>(Activation::kSwigluStep));
static_assert(MOEBIUS_BATCHED == static_cast<int>(ActivationFormat::kBatched));

QuantDesc read_operand(const moebius_quant_operand* given,
                       std::string_view what,
                       const Stream& stream) {
  const moebius_quant_operand operand = read_optional(given, what);
  const auto tensor = [&](const moebius_tensor* t, std::string_view part) {
    return read_optional_tensor(t, fmt::format("{} of {}", part, what), stream);
  };
  QuantDesc desc;
  if (operand.format != MOEBIUS_NOT_QUANTIZED) {
    desc.format = read_format(operand.format, fmt::format("format of {}", what));
  }
  if (operand.group_rows != 0 || operand.group_cols != 0) {
    desc.shape = GroupShape{operand.group_rows, operand.group_cols};
  }
  desc.scale = tensor(operand.scale, "scale");
  desc.alpha_or_gscale = tensor(operand.alpha_or_gscale, "alpha_or_gscale");
  desc.zero_point = tensor(operand.zero_point, "zero_point");
  desc.bias = tensor(operand.bias, "bias");
  desc.power_of_two_scale = read_flag(operand.power_of_two_scale, "power_of_two_scale");
  desc.calls_bring_scales = read_flag(operand.calls_bring_scales, "calls_bring_scales");
  return desc;
}

LoraWeights read_lora(const moebius_lora_weights* given, const Stream& stream) {
  const moebius_lora_weights lora = read_optional(given, "lora");
  return {.w1_a = read_optional_tensor(lora.w1_a, "w1_a", stream),
          .w1_b = read_optional_tensor(lora.w1_b, "w1_b", stream),
          .w2_a = read_optional_tensor(lora.w2_a, "w2_a", stream),
          .w2_b = read_optional_tensor(lora.w2_b, "w2_b", stream),
          .scaling = read_optional_tensor(lora.scaling, "scaling", stream)};
}

}  // namespace

ExpertWeights read_expert_weights(const moebius_expert_weights* given, const Stream& stream) {
  const moebius_expert_weights weights = read_optional(given, "expert weights");
  ExpertWeights result;
  result.w1 = read_optional_tensor(weights.w1, "w1", stream);
  result.w2 = read_optional_tensor(weights.w2, "w2", stream);
  result.quant.a1 = read_operand(weights.a1, "a1", stream);
  result.quant.a2 = read_operand(weights.a2, "a2", stream);
  result.quant.w1 = read_operand(weights.quant_w1, "quant_w1", stream);
  result.quant.w2 = read_operand(weights.quant_w2, "quant_w2", stream);
  result.lora = read_lora(weights.lora, stream);
  return result;
}

void expect_described(const ExpertWeights& weights) {
  expect_defined(weights.w1, "w1");
  expect_defined(weights.w2, "w2");
  expect(weights.w1.num_dims() == 3 && weights.w2.num_dims() == 3, [&] {
    return fmt::format("shapes of w1 and w2 are {} and {}, expected 3 dimensions each",
                       to_string(weights.w1.shape()), to_string(weights.w2.shape()));
  });
  weights.quant.validate();
}

ActivationSpec read_activation(const moebius_activation* given) {
  const moebius_activation activation = read_optional(given, "activation");
  ActivationSpec spec;
  spec.kind = static_cast<Activation>(
      read_choice(activation.kind, MOEBIUS_SWIGLU_STEP, "kind of the activation"));
  spec.gated = !read_flag(activation.is_not_gated, "is_not_gated");
  spec.interleaved = read_flag(activation.interleaved, "interleaved");
  if (activation.alpha != 0 || activation.limit != 0) {
    spec.alpha = activation.alpha;
    spec.beta = activation.beta;
    spec.limit = activation.limit;
  }
  return spec;
}

DType read_in_dtype(int32_t dtype) {
  const DType result = read_dtype(dtype, "in_dtype");
  expect(is_float(result),
         [&] { return fmt::format("in_dtype is {}, expected bf16, f16 or f32", name(result)); });
  return result;
}

ActivationFormat read_activation_format(int32_t format) {
  return static_cast<ActivationFormat>(read_choice(format, MOEBIUS_BATCHED, "format"));
}

WeightMemory read_weight_memory(int32_t lends_weights) {
  return read_flag(lends_weights, "lends_weights") ? WeightMemory::kLent : WeightMemory::kOwned;
}

KernelOptions read_kernel_options(const moebius_kernel_options* given) {
  const moebius_kernel_options options = read_optional(given, "kernel options");
  KernelOptions result;
  result.chunk_tokens = options.chunk_tokens;
  result.microbatches = options.microbatches == 0 ? 1 : options.microbatches;
  if (options.min_microbatch_tokens != 0) {
    result.min_microbatch_tokens =
        options.min_microbatch_tokens == -1 ? 0 : options.min_microbatch_tokens;
  }
  result.combine_parts = options.combine_parts;
  if (options.early_rows != 0) {
    result.early_rows = options.early_rows == -1 ? 0 : options.early_rows;
  }
  return result;
}

}  // namespace moebius::c_api
