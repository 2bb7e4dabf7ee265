// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/prepare_finalize/prepare_rows.h"

#include <fmt/format.h>

#include "core/cuda/runtime.h"
#include "layer/rows/row_ops.h"
#include "quant/cuda/batched.h"
#include "quant/groups.h"

namespace moebius {

void expect_prepare_input(const PrepareInput& input, const CallContext& context) {
  expect_hidden_dtype(input.hidden, "hidden");
  expect_eq(input.hidden.num_dims(), 2, "dimensions of hidden");
  expect_dtype(input.topk_ids, DType::kI32, "topk_ids");
  expect_eq(input.topk_ids.num_dims(), 2, "dimensions of topk_ids");
  expect_eq(input.topk_ids.dim(0), input.hidden.dim(0), "rows of topk_ids (tokens of hidden)");
  expect_dtype(input.topk_weights, DType::kF32, "topk_weights");
  expect_shape(input.topk_weights, input.topk_ids.shape(), "topk_weights");
  expect(input.quant != nullptr, "quant is missing");
  context.pool();  // refuses a missing one
  if (input.apply_router_weight_on_input) {
    expect_eq(input.topk_ids.dim(1), 1, "topk with apply_router_weight_on_input");
  }
}

Tensor weighted_input(const PrepareInput& input, const CallContext& context) {
  if (!input.apply_router_weight_on_input) {
    return input.hidden;
  }
  Tensor weighted =
      context.get(WorkspaceSlot::kWeightedInput, input.hidden.shape(), input.hidden.dtype());
  scale_rows(input.hidden, input.topk_weights, weighted, context.stream);
  return weighted;
}

Support rows_quant_supported(const QuantConfig& quant, bool defer_input_quant, int64_t num_scales) {
  if (!quant.is_quantized() || defer_input_quant) {
    return Support::yes();
  }
  const std::string format(name(*quant.a1.format));
  if (!activation_spec(quant.a1)) {
    return Support::no(fmt::format("{} activations cannot be quantized", format));
  }
  if (quant.a1.format == QuantFormat::kNvfp4 && !quant.a1.alpha_or_gscale.defined()) {
    return Support::no("nvfp4 rows need a global scale a1_gscale, and none is given");
  }
  for (const Tensor& scale : {quant.a1.scale, quant.a1.alpha_or_gscale}) {
    if (scale.defined() && scale.numel() != 1 && scale.numel() != num_scales) {
      return Support::no(fmt::format("{} activations bring {} static scales, expected {}", format,
                                     scale.numel(), num_scales));
    }
  }
  return Support::yes();
}

std::optional<QuantizeSpec> rows_quant_spec(const QuantConfig& quant, bool defer_input_quant) {
  return defer_input_quant ? std::nullopt : activation_spec(quant.a1);
}

std::optional<QuantizeSpec> rows_quant_spec(const PrepareInput& input) {
  return rows_quant_spec(*input.quant, input.defer_input_quant);
}

QuantizedSpecs quantized_specs(const QuantizeSpec& spec, int64_t rows, int64_t cols) {
  const quant::Groups groups = quant::groups_of(spec.group, rows, cols);
  return {{{rows, cols}, storage_dtype(spec.format)},
          {{groups.num_row_groups, groups.num_col_groups}, quant::scale_dtype(spec.format)}};
}

void quantize_rows(const Tensor& x,
                   const QuantizeSpec& spec,
                   const QuantDesc& desc,
                   int64_t local_expert,
                   const Tensor& values,
                   const Tensor& scale,
                   const Stream& stream) {
  const auto of_expert = [&](const Tensor& scales) {
    if (!scales.defined() || scales.numel() == 1) {
      return scales;
    }
    return scales.view({scales.numel()}).slice(local_expert, local_expert + 1);
  };
  Quantized out;
  out.values = values;
  out.scale = scale;
  std::shared_ptr<void> global_scale;  // written beside the codes; the caller has it already
  if (spec.format == QuantFormat::kNvfp4 && x.device().is_cuda()) {
    global_scale = cuda::allocate_on(sizeof(float), stream.native_handle(), stream.device().index);
    out.global_scale = Tensor::borrow(global_scale.get(), {1}, DType::kF32, x.device());
  } else if (spec.format == QuantFormat::kNvfp4) {
    out.global_scale = Tensor::empty({1}, DType::kF32);
  }
  quantize(x, spec, out, stream, of_expert(desc.scale), of_expert(desc.alpha_or_gscale));
}

QuantizedRows quantize_to_workspace(const Tensor& x,
                                    const QuantizeSpec& spec,
                                    const QuantDesc& desc,
                                    const CallContext& context) {
  const QuantizedSpecs specs = quantized_specs(spec, x.dim(0), x.dim(1));
  const auto [values, scale] = context.get(WorkspaceSlot::kPrepare, {specs.values, specs.scale});
  quantize_rows(x, spec, desc, 0, values, scale, context.stream);
  return {values, scale};
}

QuantizedSpecs batched_quantized_specs(const QuantizeSpec& spec, const Shape& x) {
  const QuantizedSpecs one = quantized_specs(spec, x[1], x[2]);
  const auto per_expert = [&](const TensorSpec& s) {
    return TensorSpec{{x[0], s.shape[0], s.shape[1]}, s.dtype};
  };
  return {per_expert(one.values), per_expert(one.scale)};
}

void quantize_batched_rows(const Tensor& x,
                           const Tensor& counts,
                           const QuantizeSpec& spec,
                           const QuantDesc& desc,
                           const Tensor& values,
                           const Tensor& scale,
                           const Stream& stream) {
  if (x.device().is_cuda()) {
    quant::cuda_quantize_batched(
        {.x = x,
         .counts = counts,
         .spec = spec,
         .tensor_scale = spec.format == QuantFormat::kNvfp4 ? desc.alpha_or_gscale : desc.scale,
         .values = values,
         .scale = scale},
        stream);
    return;
  }
  for (int64_t e = 0; e < x.dim(0); ++e) {
    const int64_t count = counts.data<int32_t>()[e];
    if (count == 0) {
      continue;
    }
    const QuantizedSpecs used = quantized_specs(spec, count, x.dim(2));
    quantize_rows(x[e].slice(0, count), spec, desc, e, values[e].slice(0, count),
                  scale[e].slice(0, used.scale.shape[0]), stream);
  }
}

}  // namespace moebius
