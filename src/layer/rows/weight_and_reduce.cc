// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/weight_and_reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/ids.h"
#include "core/same_device.h"
#include "core/token_sums.h"
#include "experts/cuda/rows/weighted_sum.h"
#include "layer/rows/batched_rows.h"
#include "layer/rows/row_ops.h"

namespace moebius {

namespace {

// The checks that both summing strategies share.  Returns K.
int64_t expect_routing(const WeightAndReduceInput& input,
                       const Tensor& output,
                       const Stream& stream) {
  expect_hidden_dtype(input.expert_output, "expert_output");
  expect_dtype(output, input.expert_output.dtype(), "output");
  expect_id_dtype(input.topk_ids, "topk_ids");
  expect_eq(input.topk_ids.num_dims(), 2, "dimensions of topk_ids");
  expect_ge(input.topk_ids.dim(1), 1, "topk_ids.dim(1)");
  expect_dtype(input.topk_weights, DType::kF32, "topk_weights");
  expect_shape(input.topk_weights, input.topk_ids.shape(), "topk_weights");
  expect_ge(input.expert_output.num_dims(), 2, "dimensions of expert_output");
  expect_shape(output, {input.topk_ids.dim(0), input.expert_output.shape().back()}, "output");
  const Device device = input.expert_output.device();
  expect_on(input.topk_ids, device, "topk_ids");
  expect_on(input.topk_weights, device, "topk_weights");
  expect_on(output, device, "output");
  expect_stream(stream, device);
  return input.topk_ids.dim(1);
}

// The weights to apply; undefined: all are 1.
Tensor weights_of(const WeightAndReduceInput& input) {
  return input.apply_router_weight_on_input ? Tensor{} : input.topk_weights;
}

// output[t] = sum over k of weights[t, k] * rows[row_of(t * K + k)], on the CPU.  Terms are added
// in order of k, or with by_row in order of their rows.  row_of() is negative for a slot without a
// row.  weights f32 [M, K]; undefined: all are 1.
template <typename RowOf>
void sum_slots(const Tensor& rows,
               const Tensor& weights,
               const Tensor& output,
               int64_t topk,
               SumRounding rounding,
               bool by_row,
               const Stream& stream,
               const RowOf& row_of) {
  sum_tokens(rows, output, rounding, stream, [&](int64_t t, std::vector<TokenTerm>& terms) {
    for (int64_t i = t * topk; i < (t + 1) * topk; ++i) {
      if (const int64_t row = row_of(i); row >= 0) {
        terms.push_back({row, weights ? weights.data<float>()[i] : 1.0f});
      }
    }
    if (by_row) {
      std::sort(terms.begin(), terms.end(),
                [](const TokenTerm& a, const TokenTerm& b) { return a.row < b.row; });
    }
  });
}

class Delegate final : public WeightAndReduce {
 public:
  WeightAndReduceKind kind() const override { return WeightAndReduceKind::kDelegate; }
  void apply(const WeightAndReduceInput&, const Tensor&, const Stream&) const override {
    throw InvalidArgument("delegate cannot be applied: prepare/finalize chooses the strategy");
  }
};

class NoOp final : public WeightAndReduce {
 public:
  WeightAndReduceKind kind() const override { return WeightAndReduceKind::kNoOp; }
  void apply(const WeightAndReduceInput& input,
             const Tensor& output,
             const Stream& stream) const override {
    expect_hidden_dtype(input.expert_output, "expert_output");
    expect_dtype(output, input.expert_output.dtype(), "output");
    expect_shape(output, input.expert_output.shape(), "output");
    if (output.raw() != input.expert_output.raw()) {
      expect_on(output, input.expert_output.device(), "output");
      copy_rows(input.expert_output, output, stream);
    }
  }
};

class Contiguous final : public WeightAndReduce {
 public:
  WeightAndReduceKind kind() const override { return WeightAndReduceKind::kContiguous; }
  void apply(const WeightAndReduceInput& input,
             const Tensor& output,
             const Stream& stream) const override {
    const int64_t topk = expect_routing(input, output, stream);
    const int64_t num_tokens = output.dim(0);
    const int64_t hidden = output.dim(1);
    expect_shape(input.expert_output,
                 input.expert_output.num_dims() == 2 ? Shape{num_tokens * topk, hidden}
                                                     : Shape{num_tokens, topk, hidden},
                 "expert_output");
    if (output.device().is_cuda()) {
      cuda_weighted_sum({.rows = input.expert_output,
                         .ids = input.topk_ids,
                         .weights = weights_of(input),
                         .sums_in_type = sums_in_dtype(topk),
                         .topk = topk,
                         .output = output},
                        stream);
      return;
    }
    const Ids ids = Ids::of(input.topk_ids);
    sum_slots(input.expert_output, weights_of(input), output, topk, sum_rounding(topk),
              /*by_row=*/false, stream, [&](int64_t i) { return ids[i] >= 0 ? i : -1; });
  }
};

class NaiveBatched final : public WeightAndReduce {
 public:
  explicit NaiveBatched(int64_t first_expert) : first_expert_(first_expert) {}

  WeightAndReduceKind kind() const override { return WeightAndReduceKind::kNaiveBatched; }
  void apply(const WeightAndReduceInput& input,
             const Tensor& output,
             const Stream& stream) const override {
    const int64_t topk = expect_routing(input, output, stream);
    expect_eq(input.expert_output.num_dims(), 3, "dimensions of expert_output");
    if (output.device().is_cuda()) {
      cuda_batched_sum({.rows = input.expert_output,
                        .ids = input.topk_ids,
                        .weights = weights_of(input),
                        .by_row = true,  // expert by expert
                        .sums_in_type = true,
                        .topk = topk,
                        .output = output},
                       first_expert_, stream);
      return;
    }
    const BatchedRows rows = batched_rows(input.topk_ids, first_expert_, input.expert_output.dim(0),
                                          input.expert_output.dim(1));
    // Rows of lower experts stand first, so this order adds expert by expert.
    sum_slots(input.expert_output, weights_of(input), output, topk, SumRounding::kProductsAndSums,
              /*by_row=*/true, stream, [&](int64_t i) { return rows.row[static_cast<size_t>(i)]; });
  }

 private:
  int64_t first_expert_;
};

}  // namespace

void reduce_permuted_rows(const Tensor& expert_rows,
                          const Tensor& row_of_slot,
                          const Tensor& weights,
                          const Tensor& output,
                          const Stream& stream) {
  expect_hidden_dtype(expert_rows, "expert_rows");
  expect_eq(expert_rows.num_dims(), 2, "dimensions of expert_rows");
  expect_dtype(row_of_slot, DType::kI32, "row_of_slot");
  expect_eq(row_of_slot.num_dims(), 2, "dimensions of row_of_slot");
  expect_ge(row_of_slot.dim(1), 1, "row_of_slot.dim(1)");
  expect_dtype(output, expert_rows.dtype(), "output");
  expect_shape(output, {row_of_slot.dim(0), expert_rows.dim(1)}, "output");
  const Device device = expert_rows.device();
  if (weights) {
    expect_dtype(weights, DType::kF32, "weights");
    expect_shape(weights, row_of_slot.shape(), "weights");
    expect_on(weights, device, "weights");
  }
  expect_on(row_of_slot, device, "row_of_slot");
  expect_on(output, device, "output");
  expect_stream(stream, device);
  const int64_t topk = row_of_slot.dim(1);
  if (device.is_cuda()) {
    cuda_weighted_sum({.rows = expert_rows,
                       .row_of_slot = row_of_slot,
                       .weights = weights,
                       .sums_in_type = sums_in_dtype(topk),
                       .topk = topk,
                       .output = output},
                      stream);
    return;
  }
  const auto* rows = row_of_slot.data<int32_t>();
  for (int64_t i = 0; i < row_of_slot.numel(); ++i) {
    if (rows[i] < -1 || rows[i] >= expert_rows.dim(0)) {
      throw InvalidArgument(fmt::format("row_of_slot[{}, {}] is {}, expected -1 or [0, {})",
                                        i / topk, i % topk, rows[i], expert_rows.dim(0)));
    }
  }
  sum_slots(expert_rows, weights, output, topk, sum_rounding(topk), /*by_row=*/false, stream,
            [&](int64_t i) { return rows[i]; });
}

std::string_view name(WeightAndReduceKind kind) {
  constexpr std::string_view kNames[] = {"delegate", "contiguous", "no-op", "naive batched"};
  return kNames[static_cast<size_t>(kind)];
}

std::unique_ptr<WeightAndReduce> make_weight_and_reduce(WeightAndReduceKind kind,
                                                        int64_t first_expert) {
  switch (kind) {
    case WeightAndReduceKind::kDelegate:
      return std::make_unique<Delegate>();
    case WeightAndReduceKind::kContiguous:
      return std::make_unique<Contiguous>();
    case WeightAndReduceKind::kNoOp:
      return std::make_unique<NoOp>();
    case WeightAndReduceKind::kNaiveBatched:
      return std::make_unique<NaiveBatched>(first_expert);
  }
  throw InvalidArgument("no such weight-and-reduce");
}

}  // namespace moebius
