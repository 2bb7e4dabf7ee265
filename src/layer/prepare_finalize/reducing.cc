// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/prepare_finalize/reducing.h"

namespace moebius {

Support ReducingPrepareFinalize::accepts(WeightAndReduceKind kind) const {
  if (!is_batched()) {
    return kind == WeightAndReduceKind::kNaiveBatched
               ? Support::no("naive batched reduces batched rows, these are standard")
               : Support::yes();
  }
  return kind == WeightAndReduceKind::kDelegate || kind == WeightAndReduceKind::kNaiveBatched
             ? Support::yes()
             : Support::no("rows are batched, so only delegate and naive batched reduce them");
}

void ReducingPrepareFinalize::reduce(const FinalizeInput& input,
                                     const Tensor& output,
                                     const Stream& stream) const {
  const WeightAndReduce* chosen = input.weight_and_reduce;
  if (chosen == nullptr) {
    throw InvalidArgument("weight_and_reduce is missing");
  }
  if (chosen->kind() == WeightAndReduceKind::kDelegate) {
    chosen = when_delegated_.get();
  }
  chosen->apply(
      {input.expert_output, input.topk_weights, input.topk_ids, input.apply_router_weight_on_input},
      output, stream);
}

Tensor ReducingPrepareFinalize::reduced_rows(const FinalizeInput& input,
                                             int64_t num_rows,
                                             const CallContext& context) const {
  const WeightAndReduce* chosen = input.weight_and_reduce;
  const bool is_final = chosen != nullptr && chosen->kind() == WeightAndReduceKind::kNoOp;
  const int64_t width = is_final ? input.expert_output.dim(1) : input.output.dim(1);
  expect_le(input.first_column + width, input.output.dim(1), "columns of expert_output");
  if (num_rows > 0 && is_final) {
    expect_shape(input.expert_output, {num_rows, width}, "expert_output");
    return input.expert_output;
  }
  const Tensor rows =
      context.get(WorkspaceSlot::kFinalize, {num_rows, width}, input.expert_output.dtype());
  if (num_rows > 0) {
    reduce(input, rows, context.stream);
  }
  return rows;
}

}  // namespace moebius
