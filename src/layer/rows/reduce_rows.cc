// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/rows/reduce_rows.h"

namespace moebius {

void reduce_rows(const FinalizeInput& input,
                 const WeightAndReduce& when_delegated,
                 const Tensor& output,
                 const Stream& stream) {
  const WeightAndReduce* chosen = input.weight_and_reduce;
  if (chosen == nullptr) {
    throw InvalidArgument("weight_and_reduce is missing");
  }
  if (chosen->kind() == WeightAndReduceKind::kDelegate) {
    chosen = &when_delegated;
  }
  chosen->apply(
      {input.expert_output, input.topk_weights, input.topk_ids, input.apply_router_weight_on_input},
      output, stream);
}

Tensor reduced_rows(const FinalizeInput& input,
                    const WeightAndReduce& when_delegated,
                    int64_t num_rows,
                    const CallContext& context) {
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
    reduce_rows(input, when_delegated, rows, context.stream);
  }
  return rows;
}

}  // namespace moebius
