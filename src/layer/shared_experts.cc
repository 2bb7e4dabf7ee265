// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/shared_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/given_tensors.h"
#include "layer/kernel_checks.h"
#include "layer/prepare_finalize/prepare_rows.h"
#include "layer/rows/quantize_rows.h"
#include "layer/rows/row_ops.h"
#include "layer/run_experts.h"

namespace moebius {

namespace {

// Rows [M, N] in the batched format, as those of one expert.
Tensor as_batch(const Tensor& rows) {
  return rows.view({1, rows.dim(0), rows.dim(1)});
}

}  // namespace

SharedExperts::SharedExperts(SharedExpertsFunction function) : function_(std::move(function)) {
  expect(function_ != nullptr, "the function of the shared experts is empty");
}

SharedExperts::SharedExperts(std::unique_ptr<Experts> experts, Tensor gate, int64_t chunk_tokens)
    : experts_(std::move(experts)),
      chunk_tokens_(chunk_tokens > 0 ? chunk_tokens : default_chunk_tokens()) {
  expect(experts_ != nullptr, "experts are missing");
  const ExpertsDesc& desc = experts_->desc();
  expect_eq(desc.num_experts, 1, "num_experts of shared experts");
  expect_eq(desc.num_local_experts, 1, "num_local_experts of shared experts");
  expect_eq(desc.topk, 1, "topk of shared experts");
  expect_eq(name(desc.format), name(ActivationFormat::kBatched), "format of shared experts");
  if (gate) {
    expect_hidden_dtype(gate, "gate of the shared experts");
    expect_shape(gate, {1, desc.hidden}, "gate of the shared experts");
    gate_ = own(std::move(gate));
  }
  expect_ge(chunk_tokens, 0, "chunk_tokens");
  expect(!experts_->quant().a2.calls_bring_scales,
         "shared experts take no a2_scale: a2's scales come from their rows");
  const bool defer = defers_input_quant(*experts_);
  const Support support = rows_quant_supported(experts_->quant(), defer, /*num_scales=*/1);
  expect(support.ok, [&] { return fmt::format("shared experts: {}", support.reason); });
  if (!defer) {
    quant_spec_ = activation_spec(experts_->quant().a1);
  }
}

void SharedExperts::expect_update(const ExpertWeights& weights, const Tensor& gate) const {
  if (function_) {
    throw Unsupported("shared experts that are a function have no weights to replace");
  }
  experts_->expect_update(weights);
  if (gate) {
    expect_like(gate, gate_, "gate of the shared experts");
  }
}

void SharedExperts::update_weights(const ExpertWeights& weights,
                                   const Tensor& gate,
                                   const Stream& stream) {
  expect_update(weights, gate);
  experts_->update_weights(weights, stream);
  if (gate && gate.raw() != gate_.raw()) {
    copy(gate, gate_, stream);
    if (gate.device() != gate_.device()) {
      stream.synchronize();  // the caller may change it
    }
  }
}

void SharedExperts::forward(const SharedExpertsInput& input,
                            const Tensor& output,
                            const CallContext& context) const {
  if (function_) {
    return function_(input.hidden, output, context);
  }
  const Tensor& hidden = input.hidden;
  const Experts& experts = *experts_;
  expect_dtype(hidden, experts.desc().in_dtype, "hidden");
  expect_eq(hidden.num_dims(), 2, "dimensions of hidden");
  expect_shape(hidden, {hidden.dim(0), experts.desc().hidden}, "hidden");
  expect_dtype(output, hidden.dtype(), "output");
  expect_shape(output, hidden.shape(), "output");
  expect_writable(output, "output");
  const int64_t num_tokens = hidden.dim(0);
  const int64_t most = input.chunk_tokens > 0 ? input.chunk_tokens : chunk_tokens_;
  const int64_t chunk = std::min(num_tokens, most);
  if (num_tokens == 0) {
    return;
  }

  const ExpertsWorkspace need = experts.workspace(chunk);
  const bool quantizes = quant_spec_ && !input.x;
  const QuantizedSpecs quantized = quantizes
                                       ? quantized_specs(*quant_spec_, num_tokens, hidden.dim(1))
                                       : QuantizedSpecs{{{0}}, {{0}}};
  const auto [intermediate, scratch, row_count, values, scale] =
      context.get(WorkspaceSlot::kShared, {{need.intermediate, need.dtype},
                                           {{need.scratch_bytes}, DType::kU8},
                                           {{1}, DType::kI32},
                                           quantized.values,
                                           quantized.scale});
  Tensor x = input.x ? input.x : hidden;
  Tensor x_scale = input.x_scale;
  if (quantizes) {
    x = values;
    x_scale = scale;
    quantize_rows(hidden, {*quant_spec_, experts.quant().a1}, {x, x_scale}, context.stream);
  }
  for (int64_t begin = 0; begin < num_tokens; begin += chunk) {
    const int64_t end = std::min(begin + chunk, num_tokens);
    const ExpertsWorkspace part = experts.workspace(end - begin);
    const auto front = [](const Tensor& block, const Shape& shape) {
      return block.view({block.numel()}).slice(0, shape.numel()).view(shape);
    };
    ExpertsInput rows;
    rows.x = as_batch(x.slice(begin, end));
    rows.x_scale = x_scale ? as_batch(slice_scale(x_scale, begin, end)) : x_scale;
    rows.expert_num_tokens = row_count;
    rows.expected_rows = end - begin;
    rows.max_sms = context.max_sms;
    fill(rows.expert_num_tokens, static_cast<int32_t>(end - begin), context.stream);
    experts.apply(rows, output.slice(begin, end).view(part.output),
                  front(intermediate, part.intermediate), scratch, context.stream);
  }
  if (gate_) {
    gate_rows(hidden, gate_, output, context.stream);
  }
}

}  // namespace moebius
