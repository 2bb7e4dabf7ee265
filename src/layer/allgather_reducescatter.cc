// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "layer/prepare_rows.h"
#include "layer/reduce_rows.h"
#include "moebius/all2all.h"

namespace moebius {

namespace {

constexpr std::string_view kOp = "allgather_reducescatter";

class AllGatherReduceScatter final : public PrepareFinalize {
 public:
  AllGatherReduceScatter(Group& group, bool monolithic) : group_(group), monolithic_(monolithic) {}

  std::string_view name() const override {
    return monolithic_ ? "allgather_reducescatter (monolithic)" : kOp;
  }
  ActivationFormat activation_format() const override { return ActivationFormat::kStandard; }
  std::optional<int64_t> max_tokens_per_rank() const override { return std::nullopt; }
  int num_dispatchers() const override { return group_.size(); }
  bool output_is_reduced() const override { return false; }
  bool is_monolithic() const override { return monolithic_; }

  Support accepts(WeightAndReduceKind kind) const override {
    return kind == WeightAndReduceKind::kNaiveBatched
               ? Support::no("naive batched reduces batched rows, these are standard")
               : Support::yes();
  }
  Support accepts(const QuantConfig& quant, bool defer_input_quant) const override {
    return rows_quant_supported(quant, defer_input_quant, /*num_scales=*/1);
  }

  // Every token goes to every rank.  Monolithic: selections are made where they arrive.
  std::optional<TransportStatistics> statistics() const override {
    return monolithic_ ? std::nullopt : std::optional(statistics_);
  }

  PrepareResult prepare(const PrepareInput& input, const CallContext& context) override;
  void finalize(const FinalizeInput& input, const CallContext& context) override;

 private:
  Tensor gather(const Tensor& rows, const std::vector<int64_t>& counts, const Stream& stream) const;

  Group& group_;
  bool monolithic_;
  TransportStatistics statistics_;
  std::map<int, std::vector<int64_t>> counts_;  // tokens per rank of the call, by micro-batch
  std::unique_ptr<WeightAndReduce> contiguous_ =
      make_weight_and_reduce(WeightAndReduceKind::kContiguous);
};

Tensor AllGatherReduceScatter::gather(const Tensor& rows,
                                      const std::vector<int64_t>& counts,
                                      const Stream& stream) const {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const Tensor all = rows.num_dims() == 1 ? Tensor::empty({total}, rows.dtype())
                                          : Tensor::empty({total, rows.dim(1)}, rows.dtype());
  all_gatherv(group_, kOp, rows, counts, all, stream);
  return all;
}

PrepareResult AllGatherReduceScatter::prepare(const PrepareInput& input,
                                              const CallContext& context) {
  if (monolithic_) {
    expect(!input.apply_router_weight_on_input,
           "a monolithic prepare cannot put the router weight on the input: rows travel unrouted");
    expect_shape(input.router_logits, {input.hidden.dim(0), input.num_experts}, "router_logits");
    expect_dtype(input.router_logits, DType::kF32, "router_logits");
  } else {
    expect_prepare_input(input, context);
  }
  std::vector<int64_t>& counts = counts_[context.microbatch];
  counts.resize(static_cast<size_t>(group_.size()));
  const int64_t num_tokens = input.hidden.dim(0);
  all_gather_bytes(group_, kOp, &num_tokens, sizeof(num_tokens), counts.data());

  PrepareResult result;
  const Tensor x = weighted_input(input, context);
  const auto spec = rows_quant_spec(input);
  const bool per_tensor = spec && spec->group.is_per_tensor();
  const bool is_static = input.quant->a1.scale.defined();
  const auto quantize_into_result = [&](const Tensor& rows) {
    const QuantizedSpecs specs = quantized_specs(*spec, rows.dim(0), rows.dim(1));
    result.x = Tensor::empty(specs.values.shape, specs.values.dtype);
    result.x_scale = Tensor::empty(specs.scale.shape, specs.scale.dtype);
    quantize_rows(rows, *spec, input.quant->a1, 0, result.x, result.x_scale, context.stream);
  };
  if (!spec) {
    result.x = gather(x, counts, context.stream);
  } else if (per_tensor && !is_static) {
    quantize_into_result(gather(x, counts, context.stream));
  } else {
    quantize_into_result(x);
    result.x = gather(result.x, counts, context.stream);
    if (!per_tensor) {
      result.x_scale = gather(result.x_scale, counts, context.stream);
    }
  }
  if (monolithic_) {
    result.router_logits = gather(input.router_logits, counts, context.stream);
  } else {
    result.topk_ids = gather(input.topk_ids, counts, context.stream);
    result.topk_weights = gather(input.topk_weights, counts, context.stream);
    const Topology& topology = group_.topology();
    const auto* ids = input.topk_ids.data<int32_t>();
    statistics_.selections +=
        std::count_if(ids, ids + input.topk_ids.numel(), [](int32_t id) { return id >= 0; });
    statistics_.copies += num_tokens * topology.size;
    statistics_.node_copies += num_tokens * (topology.size - topology.node_size(topology.node()));
  }
  if (input.lora_ids) {
    result.lora_ids = gather(input.lora_ids, counts, context.stream);
  }
  return result;
}

void AllGatherReduceScatter::finalize(const FinalizeInput& input, const CallContext& context) {
  const auto found = counts_.find(context.microbatch);
  expect(found != counts_.end(),
         fmt::format("finalize of micro-batch {} came before its prepare", context.microbatch));
  const std::vector<int64_t>& counts = found->second;
  expect_eq(input.output.dim(0), counts[static_cast<size_t>(group_.rank())],
            "rows of output (tokens of prepare)");
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const Tensor partial =
      context.pool().get(context.microbatch, WorkspaceSlot::kFinalize, {total, input.output.dim(1)},
                         input.expert_output.dtype());
  if (total > 0) {
    reduce_rows(input, *contiguous_, partial, context.stream);
  }
  reduce_scatterv(group_, kOp, partial, counts, input.output, context.stream);
}

}  // namespace

std::unique_ptr<PrepareFinalize> make_allgather_reducescatter(Group& group, bool monolithic) {
  return std::make_unique<AllGatherReduceScatter>(group, monolithic);
}

}  // namespace moebius
