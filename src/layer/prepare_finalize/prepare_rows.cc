// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/prepare_finalize/prepare_rows.h"

#include <fmt/format.h>

#include "core/ids.h"
#include "layer/rows/quantize_rows.h"
#include "layer/rows/row_ops.h"

namespace moebius {

void expect_prepare_input(const PrepareInput& input, const CallContext& context) {
  expect_hidden_dtype(input.hidden, "hidden");
  expect_eq(input.hidden.num_dims(), 2, "dimensions of hidden");
  expect_id_dtype(input.topk_ids, "topk_ids");
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

void expect_extras(const PrepareInput& input, const PrepareFinalizeTraits& backend) {
  if (!input.extras.empty() && !backend.carries_extras.ok) {
    throw Unsupported(fmt::format("{} extra tensors with {}: {}", input.extras.size(), backend.name,
                                  backend.carries_extras.reason));
  }
  for (const Tensor& extra : input.extras) {
    expect_defined(extra, "an extra tensor");
    expect_ge(extra.num_dims(), 1, "dimensions of an extra tensor");
    expect_eq(extra.dim(0), input.hidden.dim(0), "rows of an extra tensor (tokens of hidden)");
  }
}

std::vector<Tensor> extra_rows(const PrepareInput& input,
                               const std::function<Shape(const Tensor& extra)>& shape_of,
                               const CallContext& context) {
  std::vector<TensorSpec> specs;
  for (const Tensor& extra : input.extras) {
    specs.push_back({shape_of(extra), extra.dtype()});
  }
  std::vector<Tensor> rows(specs.size());
  context.pool().get(context.microbatch, WorkspaceSlot::kExtras, specs, rows, context.stream);
  return rows;
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

std::optional<QuantizeSpec> travel_quant_spec(const PrepareInput& input) {
  const auto spec = rows_quant_spec(*input.quant, false);
  const bool is_handed_over =
      !input.defer_input_quant ||
      (input.may_quantize_transfers && spec && quantizes_by_row(*spec, input.quant->a1));
  return is_handed_over ? spec : std::nullopt;
}

bool quantizes_by_row(const QuantizeSpec& spec, const QuantDesc& a1) {
  if (has_one_static_scale(spec, a1)) {
    return true;
  }
  return spec.group.row == 1 && !a1.scale &&
         (spec.format != QuantFormat::kNvfp4 || spec.global_scale_per_row ||
          (a1.alpha_or_gscale && a1.alpha_or_gscale.numel() == 1));
}

bool has_one_static_scale(const QuantizeSpec& spec, const QuantDesc& a1) {
  return spec.group.is_per_tensor() && a1.scale && a1.scale.numel() == 1;
}

QuantizedRows quantize_to_workspace(const Tensor& x,
                                    const RowQuant& how,
                                    const CallContext& context) {
  const QuantizedSpecs specs = quantized_specs(how.spec, x.dim(0), x.dim(1));
  const auto [values, scale] = context.get(WorkspaceSlot::kPrepare, {specs.values, specs.scale});
  const QuantizedRows rows{values, scale};
  quantize_rows(x, how, rows, context.stream);
  return rows;
}

}  // namespace moebius
