// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "comm/group/shared_device.h"
#include "comm/low_latency/cpu/message_layout.h"
#include "core/device_traits.h"
#include "layer/flight.h"
#include "layer/prepare_finalize/prepare_rows.h"
#include "layer/rows/quantize_rows.h"
#include "layer/rows/row_ops.h"
#include "layer/rows/token_slices.h"
#include "layer/transfer.h"
#include "moebius/all2all.h"

namespace moebius {

namespace {

LowLatencyCast cast_for(const QuantConfig& quant) {
  const auto spec = activation_spec(quant.a1);
  if (!spec || spec->format != QuantFormat::kFp8 || spec->group != GroupShape{1, 128}) {
    return LowLatencyCast::kNone;
  }
  return spec->power_of_two_scale ? LowLatencyCast::kFp8Ue8m0 : LowLatencyCast::kFp8;
}

// Whether tokens are quantized once, before they travel.  `most_bytes` is what a row and its scales
// may have.
bool quantizes_tokens(const QuantizeSpec& spec,
                      const QuantDesc& a1,
                      int64_t hidden,
                      int64_t most_bytes) {
  if (!quantizes_by_row(spec, a1) || !quantize_supported(spec, 1, hidden).ok) {
    return false;
  }
  const QuantizedSpecs specs = quantized_specs(spec, 1, hidden);
  const int64_t num_scales = has_one_static_scale(spec, a1) ? 0 : specs.scale.shape.numel();
  const LowLatencyRow row{row_bytes(specs.values.dtype, hidden),
                          row_bytes(specs.scale.dtype, num_scales)};
  return row.value_bytes % 2 == 0 && row.bytes() <= most_bytes;
}

Support can_be_captured(const Group& group, const Support& side_by_side) {
  return group.topology().num_nodes() == 1
             ? side_by_side
             : Support::no("low_latency over several nodes exchanges messages between hosts");
}

PrepareFinalizeTraits traits_of(const LowLatency& transport) {
  Group& group = transport.group();
  const LowLatencyOptions& options = transport.options();
  const Support side_by_side = comm::can_replay_graphs(group);
  return {.name = "low_latency",
          .activation_format = ActivationFormat::kBatched,
          .max_tokens_per_rank = options.max_tokens,
          .num_dispatchers = group.size(),
          .is_async = true,
          .localizes_ids = true,
          .comm_sms = options.num_sms,
          .finalize_sms = options.num_sms,
          .has_streams_beside = side_by_side.ok,
          .max_in_flight = 2,  // the transport keeps two results at a time
          .placed_experts = transport.placement().expert_map(group.rank()),
          .carries_extras =
              Support::no("its messages have room for a row, its scales and the id of an adapter"),
          .can_be_captured = can_be_captured(group, side_by_side)};
}

class LowLatencyPrepareFinalize final : public PrepareFinalize {
 public:
  explicit LowLatencyPrepareFinalize(std::shared_ptr<LowLatency> transport)
      : PrepareFinalize(traits_of(*transport)),
        group_(transport->group()),
        num_local_experts_(transport->placement().num_local(group_.rank())),
        options_(transport->options()),
        transport_(std::move(transport)) {}

  Support accepts(WeightAndReduceKind kind) const override {
    return kind == WeightAndReduceKind::kDelegate
               ? Support::yes()
               : Support::no(
                     "low_latency weights and sums in combine, so the experts must delegate");
  }
  Support accepts(const QuantConfig& quant, bool defer_input_quant) const override {
    if (defer_input_quant && cast_for(quant) != LowLatencyCast::kNone) {
      return Support::no("low_latency cannot defer the fp8 cast: it happens in flight");
    }
    if (cast_for(quant) != LowLatencyCast::kNone && options_.hidden % 128 != 0) {
      return Support::no(fmt::format(
          "hidden {} is not a multiple of 128, as the fp8 cast in flight needs", options_.hidden));
    }
    return rows_quant_supported(quant, defer_input_quant, num_local_experts_);
  }

  int64_t fewest_tokens(int64_t num_tokens) override {
    const std::vector<bool> dead = transport_->dead_ranks();
    const bool all_live = std::find(dead.begin(), dead.end(), true) == dead.end();
    return all_live ? agree_on_fewest(group_, num_tokens) : 0;
  }
  void forget(int microbatch) override { calls_.erase(microbatch); }
  void give_up(std::string_view why) noexcept override { tell_others(group_, why); }

  std::optional<TransportStatistics> statistics() const override {
    return transport_->statistics();
  }
  void check() const override { transport_->check(); }

  void set_dead(int rank, bool dead) override {
    if (group_.topology().num_nodes() > 1) {  // messages between nodes are collective
      throw Unsupported(
          fmt::format("low_latency over {} nodes needs every rank and cannot go on without rank {}",
                      group_.topology().num_nodes(), rank));
    }
    transport_->set_dead(rank, dead);
  }

  Pending<PrepareResult> prepare_async(const PrepareInput& input,
                                       const CallContext& context) override;
  Pending<void> finalize_async(const FinalizeInput& input, const CallContext& context) override;

 private:
  // What combine needs of the dispatch: its handle, and the ids and weights that were sent.
  struct Call {
    std::shared_ptr<const LowLatencyHandle> handle;
    Tensor topk_ids;
    Tensor topk_weights;
  };

  // Whether a transfer is split into sending and receiving, as it always is on CPUs and between
  // nodes. On a GPU only micro-batches have something to do between the halves.  Other calls take
  // one kernel, which is faster than two and lets no other work in between.
  bool goes_in_halves(const CallContext& context) const {
    return !device_traits(context.stream.device()).enqueues || context.transfers ||
           group_.topology().num_nodes() > 1;
  }
  // Starts a transfer by halves(stream) -> Pending<Result> or by whole(stream) -> Result.
  template <typename Result, typename Halves, typename Whole>
  Pending<Result> start(std::string_view name,
                        const CallContext& context,
                        const Halves& halves,
                        const Whole& whole) const {
    return start_transfer<Result>(context, [&](const Stream& stream) {
      return in_flight<Result>(name, context, stream, [&] {
        return goes_in_halves(context) ? halves(stream)
                                       : made_at_once<Result>([&] { return whole(stream); });
      });
    });
  }

  Group& group_;
  int64_t num_local_experts_;
  LowLatencyOptions options_;
  std::shared_ptr<LowLatency> transport_;
  std::map<int, Call> calls_;  // by micro-batch
};

Pending<PrepareResult> LowLatencyPrepareFinalize::prepare_async(const PrepareInput& input,
                                                                const CallContext& context) {
  expect_prepare_input(input, context);
  expect_extras(input, traits());
  const LowLatencyCast cast = cast_for(*input.quant);
  const Tensor x = weighted_input(input, context);
  LowLatencyDispatchInput rows{x, input.topk_ids, cast, input.lora_ids};
  const QuantDesc a1 = input.quant->a1;
  auto spec = cast == LowLatencyCast::kNone ? travel_quant_spec(input) : std::nullopt;
  const int64_t most_bytes = LowLatencyLayout::make(options_, group_.size()).max_row_bytes();
  const bool before = spec && quantizes_tokens(*spec, a1, options_.hidden, most_bytes);
  const bool is_static = before && has_one_static_scale(*spec, a1);
  if (input.defer_input_quant && !before) {
    spec.reset();
  }
  Tensor static_scales;  // one and the same for each expert
  if (before) {
    const QuantizedRows quantized = quantize_to_workspace(x, {*spec, a1}, context);
    rows.x = quantized.values;
    if (is_static) {
      // Why this slot: low latency carries no extras, so it is free.
      static_scales = context.get(WorkspaceSlot::kExtras, {num_local_experts_, 1, 1}, DType::kF32);
      fill(static_scales, a1.scale, context.stream);
    } else {
      rows.x_scale = quantized.scale;
      if (goes_in_halves(context) && hands_over_own_rows(input)) {
        input.own_rows->x = quantized.values;
        input.own_rows->x_scale = quantized.scale;
      }
    }
  }
  if (input.own_rows != nullptr && goes_in_halves(context)) {
    input.own_rows->transfer_begin = context.stream.record();
  }
  using Dispatched = LowLatencyDispatchOutput;
  auto pending = std::make_shared<Pending<Dispatched>>(start<Dispatched>(
      "dispatch", context,
      [&](const Stream& stream) { return transport_->dispatch_async(rows, stream); },
      [&](const Stream& stream) { return transport_->dispatch(rows, stream); }));
  Call call{nullptr, input.topk_ids, input.topk_weights};
  if (input.apply_router_weight_on_input) {  // rows are weighted already
    // Why this slot: low latency puts no rows into it before combine, so it is free.
    call.topk_weights =
        context.get(WorkspaceSlot::kFinalize, input.topk_weights.shape(), DType::kF32);
    fill(call.topk_weights, 1.0f, context.stream);
  }
  const bool has_lora = input.lora_ids.defined();
  // This assumes that other ranks bring as many tokens as this one.
  const int64_t selections = input.topk_ids.numel() * group_.size();
  const int64_t expected_rows = (selections + input.num_experts - 1) / input.num_experts;

  return {pending->hook,
          [this, pending, call, spec, a1, before, static_scales, has_lora, expected_rows, context] {
            const LowLatencyDispatchOutput received = pending->receive();
            calls_[context.microbatch] = {received.handle, call.topk_ids, call.topk_weights};
            PrepareResult result;
            result.x = received.x;
            result.x_scale = static_scales ? static_scales : received.x_scale;
            result.expert_num_tokens = received.expert_num_tokens;
            result.expected_rows = std::max<int64_t>(1, expected_rows);
            if (has_lora) {
              result.lora_ids = received.row_tags;
            }
            if (spec && !before) {
              const QuantizedSpecs specs = batched_quantized_specs(*spec, received.x.shape());
              const auto [values, scale] =
                  context.get(WorkspaceSlot::kPrepare, {specs.values, specs.scale});
              quantize_batched_rows(received.x, received.expert_num_tokens, {*spec, a1},
                                    {values, scale}, context.stream);
              result.x = values;
              result.x_scale = scale;
            }
            return result;
          }};
}

Pending<void> LowLatencyPrepareFinalize::finalize_async(const FinalizeInput& input,
                                                        const CallContext& context) {
  expect(input.weight_and_reduce != nullptr &&
             input.weight_and_reduce->kind() == WeightAndReduceKind::kDelegate,
         "low_latency weights and sums in combine, so the experts must delegate");
  const Call call = prepared_call(calls_, context);
  calls_.erase(context.microbatch);
  const LowLatencyCombineInput rows{input.expert_output, call.topk_ids, call.topk_weights};
  using Combined = LowLatencyCombineOutput;
  Pending<Combined> sent = start<Combined>(
      "combine", context,
      [&](const Stream& stream) {
        return transport_->combine_async(rows, *call.handle, stream, input.output);
      },
      [&](const Stream& stream) {
        return transport_->combine(rows, *call.handle, stream, input.output);
      });
  return {std::move(sent.hook), [receive = std::move(sent.receive)] { receive(); }};
}

}  // namespace

std::unique_ptr<PrepareFinalize> make_low_latency(std::shared_ptr<LowLatency> transport) {
  expect(transport != nullptr, "the low-latency transport is missing");
  return std::make_unique<LowLatencyPrepareFinalize>(std::move(transport));
}

}  // namespace moebius
