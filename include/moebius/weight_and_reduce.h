// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// WeightAndReduce: applies router weights to expert outputs and sums the rows of each token.
// Letters: M tokens, K top-k, H hidden, L local experts, R rows.
// The numerics are those of vLLM's topk_weight_and_reduce and moe_sum.
// Thread-safety: apply() is const, and concurrent calls are safe where their tensors are distinct.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "moebius/api.h"
#include "moebius/experts.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius MOEBIUS_API {

std::string_view name(WeightAndReduceKind kind);  // "delegate", "contiguous", ...

struct WeightAndReduceInput {
  Tensor expert_output;                       // see the strategies
  Tensor topk_weights;                        // f32 [M, K]
  Tensor topk_ids;                            // i32 or i64 [M, K]
  bool apply_router_weight_on_input = false;  // true: all weights count as 1
};

class WeightAndReduce {
 public:
  virtual ~WeightAndReduce() = default;
  virtual WeightAndReduceKind kind() const = 0;
  // output [M, H] has the dtype of expert_output (f32, bf16 or f16) and is overwritten.  After the
  // call expert_output is undefined, because an implementation may scale it in place.
  // On a GPU all tensors are on the stream's device, the sums are enqueued there, and the host does
  // not wait.
  // Throws InvalidArgument for a shape that does not fit, naming both shapes, and for K = 0 where
  // rows are summed; throws Unsupported for sums on a GPU with K above 3072.
  virtual void apply(const WeightAndReduceInput& input,
                     const Tensor& output,
                     const Stream& stream) const = 0;
};

// What each strategy does with its expert_output:
// kDelegate      leaves the choice to prepare/finalize; applying it is an error.
// kContiguous    [M, K, H] or [M * K, H]: each row is multiplied by its weight and rounded to the
//                dtype, then the K rows of a token are summed.  With K = 2, 3 or 4 they are added
//                slot by slot in the dtype, otherwise in f32 with one rounding at the end.  Masked
//                selections (id -1) contribute nothing.
// kNoOp          [M, H] is copied; where it already is the output, nothing happens.
// kNaiveBatched  [L, max_rows, H]: rows of an expert are in token order, and a token's rows are
//                added expert by expert in the dtype.  `first_expert` is the global id of local
//                expert 0.  If an expert has more rows than max_rows, the CPU throws; a GPU, which
//                does not read the counts, treats the excess rows as masked.
std::unique_ptr<WeightAndReduce> make_weight_and_reduce(WeightAndReduceKind kind,
                                                        int64_t first_expert = 0);

// Undoes the permutation of moebius/permute.h while it weights and sums:
// output[t] = sum over k of weights[t, k] * expert_rows[row_of_slot[t, k]], rounded as kContiguous
// rounds.  Slots with row -1 contribute nothing.
// expert_rows [R, H], row_of_slot i32 [M, K >= 1], weights f32 [M, K] or undefined (all 1),
// output [M, H].  On the CPU a row outside [-1, R) throws InvalidArgument that names token, slot
// and row.  On a GPU rows are not checked and must be below R; K above 3072 throws Unsupported.
void reduce_permuted_rows(const Tensor& expert_rows,
                          const Tensor& row_of_slot,
                          const Tensor& weights,
                          const Tensor& output,
                          const Stream& stream);

}  // namespace moebius
