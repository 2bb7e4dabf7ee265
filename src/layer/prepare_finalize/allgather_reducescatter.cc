// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <numeric>
#include <vector>

#include "comm/group/captured_exchanges.h"
#include "comm/routing/payloads.h"
#include "layer/flight.h"
#include "layer/prepare_finalize/reducing.h"
#include "layer/rows/quantize_rows.h"
#include "layer/rows/row_ops.h"
#include "layer/rows/token_slices.h"
#include "moebius/all2all.h"

namespace moebius {

namespace {

constexpr std::string_view kOp = "allgather_reducescatter";

class AllGatherReduceScatter final : public ReducingPrepareFinalize {
 public:
  AllGatherReduceScatter(Group& group, bool monolithic)
      : ReducingPrepareFinalize({.name = monolithic ? "allgather_reducescatter (monolithic)" : kOp,
                                 .num_dispatchers = group.size(),
                                 .is_monolithic = monolithic,
                                 .can_be_captured = comm::can_capture_exchanges(group)}),
        group_(group),
        monolithic_(monolithic) {}

  // Every token goes to every rank.  A monolithic dispatch counts nothing, because selections are
  // made where the logits arrive.
  std::optional<TransportStatistics> statistics() const override {
    if (monolithic_) {
      return std::nullopt;
    }
    TransportStatistics all = statistics_;
    all.selections += counted_selections();
    return all;
  }

  int64_t fewest_tokens(int64_t num_tokens) override { return agree_on_fewest(group_, num_tokens); }
  void forget(int microbatch) override { counts_.erase(microbatch); }
  void give_up(std::string_view why) noexcept override { tell_others(group_, why); }

  PrepareResult prepare(const PrepareInput& input, const CallContext& context) override;
  void finalize(const FinalizeInput& input, const CallContext& context) override;

 private:
  void count(const Tensor& ids, const Stream& stream);
  int64_t counted_selections() const;

  Group& group_;
  bool monolithic_;
  TransportStatistics statistics_;
  Tensor selections_;                           // i64 [1], counted on its device
  Stream stream_;                               // the stream of that count
  std::map<int, std::vector<int64_t>> counts_;  // by micro-batch: tokens of each rank
};

void AllGatherReduceScatter::count(const Tensor& ids, const Stream& stream) {
  if (!selections_ || selections_.device() != ids.device()) {
    statistics_.selections += counted_selections();
    selections_ = Tensor::zeros({1}, DType::kI64, ids.device());
  }
  count_selections(ids, selections_, stream);
  stream_ = stream;
}

int64_t AllGatherReduceScatter::counted_selections() const {
  return selections_ ? to_device(selections_, Device::cpu(), stream_).data<int64_t>()[0] : 0;
}

PrepareResult AllGatherReduceScatter::prepare(const PrepareInput& input,
                                              const CallContext& context) {
  if (monolithic_) {
    expect(!input.apply_router_weight_on_input,
           "a monolithic prepare cannot put the router weight on the input: rows travel unrouted");
    expect_shape(input.router_logits, {input.hidden.dim(0), input.num_experts}, "router_logits");
    expect_hidden_dtype(input.router_logits, "router_logits");
  } else {
    expect_prepare_input(input, context);
  }
  expect_extras(input, traits());
  std::vector<int64_t>& counts = counts_[context.microbatch];
  counts.resize(static_cast<size_t>(group_.size()));
  const int64_t num_tokens = input.hidden.dim(0);
  in_flight("dispatch", context, context.stream,
            [&] { all_gather_bytes(group_, kOp, &num_tokens, sizeof(num_tokens), counts.data()); });

  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});

  const Tensor x = weighted_input(input, context);
  const auto spec = travel_quant_spec(input);
  const QuantDesc& a1 = input.quant->a1;
  // A dynamic scale for all rows can only be found after they have arrived.
  const bool quantizes_after = spec && !quantizes_by_row(*spec, a1);
  const TensorSpec none{{0}};
  const auto quantized = [&](bool wanted, int64_t rows) {
    return wanted ? quantized_specs(*spec, rows, x.dim(1)) : QuantizedSpecs{none, none};
  };
  const auto all_of = [&](const Tensor& rows, bool wanted) {
    return !wanted                ? none
           : rows.num_dims() == 1 ? TensorSpec{{total}, rows.dtype()}
                                  : TensorSpec{{total, rows.dim(1)}, rows.dtype()};
  };
  const QuantizedSpecs own = quantized(spec && !quantizes_after, num_tokens);
  const QuantizedSpecs all = quantized(spec.has_value(), total);
  const auto [own_values, own_scale, all_values, all_scale, all_rows, all_logits, all_ids,
              all_weights, all_lora_ids] =
      context.get(WorkspaceSlot::kPrepare,
                  {own.values, own.scale, all.values, all.scale,
                   all_of(x, !spec || quantizes_after), all_of(input.router_logits, monolithic_),
                   all_of(input.topk_ids, !monolithic_), all_of(input.topk_weights, !monolithic_),
                   all_of(input.lora_ids, input.lora_ids.defined())});
  const auto gather = [&](const Tensor& rows, const Tensor& to) {
    in_flight("dispatch", context, context.stream,
              [&] { all_gatherv(group_, kOp, rows, counts, to, context.stream); });
    return to;
  };

  PrepareResult result;
  if (!spec) {
    result.x = gather(x, all_rows);
  } else if (quantizes_after) {
    result.x = all_values;
    result.x_scale = all_scale;
    quantize_rows(gather(x, all_rows), {*spec, a1}, {result.x, result.x_scale}, context.stream);
  } else {
    quantize_rows(x, {*spec, a1}, {own_values, own_scale}, context.stream);
    result.x = gather(own_values, all_values);
    result.x_scale =
        has_one_static_scale(*spec, a1) ? a1.scale.view({1, 1}) : gather(own_scale, all_scale);
  }
  if (monolithic_) {
    result.router_logits = gather(input.router_logits, all_logits);
  } else {
    result.topk_ids = gather(input.topk_ids, all_ids);
    result.topk_weights = gather(input.topk_weights, all_weights);
    const Topology& topology = group_.topology();
    count(input.topk_ids, context.stream);
    statistics_.copies += num_tokens * topology.size;
    statistics_.node_copies += num_tokens * (topology.size - topology.node_size(topology.node()));
  }
  if (input.lora_ids) {
    result.lora_ids = gather(input.lora_ids, all_lora_ids);
  }
  result.extras = extra_rows(
      input, [&](const Tensor& extra) { return with_rows(extra, total); }, context);
  for (size_t i = 0; i < input.extras.size(); ++i) {
    gather(input.extras[i], result.extras[i]);
  }
  return result;
}

void AllGatherReduceScatter::finalize(const FinalizeInput& input, const CallContext& context) {
  const std::vector<int64_t>& counts = prepared_call(counts_, context);
  expect_eq(input.output.dim(0), counts[static_cast<size_t>(group_.rank())],
            "rows of output (tokens of prepare)");
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const Tensor partial = reduced_rows(input, total, context);
  in_flight("combine", context, context.stream,
            [&] { reduce_scatterv(group_, kOp, partial, counts, input.output, context.stream); });
}

}  // namespace

std::unique_ptr<PrepareFinalize> make_allgather_reducescatter(Group& group, bool monolithic) {
  return std::make_unique<AllGatherReduceScatter>(group, monolithic);
}

}  // namespace moebius
