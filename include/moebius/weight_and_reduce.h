// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// WeightAndReduce: applies router weights to expert outputs and sums the rows of each token.
// Letters: M tokens, K top-k, H hidden, L local experts.
// Source of the numerics: vLLM's topk_weight_and_reduce and moe_sum.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "moebius/experts.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius {

std::string_view name(WeightAndReduceKind kind);  // "delegate", "contiguous", ...

struct WeightAndReduceInput {
  Tensor expert_output;                       // see the strategies
  Tensor topk_weights;                        // f32 [M, K]
  Tensor topk_ids;                            // i32 [M, K]
  bool apply_router_weight_on_input = false;  // weights count as 1
};

class WeightAndReduce {
 public:
  virtual ~WeightAndReduce() = default;
  virtual WeightAndReduceKind kind() const = 0;
  // output [M, H], dtype of expert_output (f32, bf16, f16); overwritten.  expert_output is scratch
  // from here on: an implementation may scale it in place.
  // On a GPU everything is on one device and of the stream; nothing waits on the host.
  // Throws InvalidArgument on a shape that does not fit (both shapes named), K = 0 among them where
  // rows are summed, and Unsupported for sums on a GPU with K above 3072.
  virtual void apply(const WeightAndReduceInput& input,
                     const Tensor& output,
                     const Stream& stream) const = 0;
};

// kDelegate    says "prepare/finalize decides"; applying it is an error.
// kContiguous  [M, K, H] or [M * K, H]: each row times its weight, rounded to the dtype; then
//              summed over K, with K = 2, 3 or 4 in the dtype, slot by slot, otherwise in f32
//              with one rounding.  Masked selections (id -1) contribute nothing.
// kNoOp        [M, H] is copied (nothing happens when it already is the output).
// kNaiveBatched [L, max_rows, H]: expert by expert, rows in token order, added in the dtype;
//              `first_expert` is the global id of local expert 0.  More rows than max_rows are an
//              error on the CPU; on a GPU, where counts are not read, those past it count as
//              masked.
std::unique_ptr<WeightAndReduce> make_weight_and_reduce(WeightAndReduceKind kind,
                                                        int64_t first_expert = 0);

// output[t] = sum over k of weights[t, k] * expert_rows[row_of_slot[t, k]], as kContiguous rounds;
// slots with row -1 contribute nothing.  The way back from moebius/permute.h.
// expert_rows [R, H], row_of_slot i32 [M, K >= 1], weights f32 [M, K] or undefined (all 1),
// output [M, H].  On the CPU throws InvalidArgument naming token, slot and row for a row outside
// [-1, R).  REQUIRES: on a GPU, rows below R.  Throws Unsupported there for K above 3072.
void reduce_permuted_rows(const Tensor& expert_rows,
                          const Tensor& row_of_slot,
                          const Tensor& weights,
                          const Tensor& output,
                          const Stream& stream);

}  // namespace moebius
