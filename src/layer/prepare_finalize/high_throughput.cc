// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "comm/group/shared_device.h"
#include "core/device_traits.h"
#include "layer/flight.h"
#include "layer/prepare_finalize/reducing.h"
#include "layer/rows/row_ops.h"
#include "layer/rows/token_slices.h"
#include "layer/transfer.h"
#include "moebius/all2all.h"
#include "quant/groups.h"

namespace moebius {

namespace {

// Whether kernels move all rows and no messages between hosts do.  Only then can a transfer take
// columns and an addend.
bool goes_in_kernels(const Group& group) {
  return device_traits(group.device()).enqueues && group.topology().num_nodes() == 1;
}

Support can_be_captured(const Group& group,
                        std::optional<int64_t> capacity,
                        const Support& side_by_side) {
  if (group.topology().num_nodes() > 1) {
    return Support::no("high_throughput over several nodes exchanges messages between hosts");
  }
  return capacity ? side_by_side
                  : Support::no(
                        "high_throughput waits on the host for the number of rows, unless the "
                        "layer has a capacity");
}

PrepareFinalizeTraits traits_of(const HighThroughput& transport, std::optional<int64_t> capacity) {
  Group& group = transport.group();
  const int combine_sms = transport.combine_config().num_sms;
  const bool is_all_kernels = goes_in_kernels(group);
  const Support side_by_side = comm::can_replay_graphs(group);
  return {.name = "high_throughput",
          .num_dispatchers = group.size(),
          .takes_columns = is_all_kernels,
          .takes_addend = is_all_kernels,
          .is_async = true,
          .localizes_ids = true,
          .comm_sms = std::max(transport.dispatch_config().num_sms, combine_sms),
          .finalize_sms = combine_sms,
          .has_streams_beside = side_by_side.ok,
          .placed_experts = transport.placement().expert_map(group.rank()),
          .can_be_captured = can_be_captured(group, capacity, side_by_side)};
}

class HighThroughputPrepareFinalize final : public ReducingPrepareFinalize {
 public:
  HighThroughputPrepareFinalize(std::shared_ptr<HighThroughput> transport,
                                std::optional<int64_t> capacity)
      : ReducingPrepareFinalize(traits_of(*transport, capacity)),
        group_(transport->group()),
        capacity_(capacity),
        transport_(std::move(transport)) {}

  // Rows that are quantized after arrival cannot come in waves, because all must be here first.
  // Those with one static scale do not, because no kernel of the experts takes them so.
  bool sends_in_waves(const QuantConfig& quant, bool defer_input_quant) const override {
    const auto spec = rows_quant_spec(quant, defer_input_quant);
    return traits().takes_columns && !capacity_ &&
           (!spec || (quantizes_by_row(*spec, quant.a1) && !has_one_static_scale(*spec, quant.a1)));
  }

  int64_t fewest_tokens(int64_t num_tokens) override { return agree_on_fewest(group_, num_tokens); }
  void forget(int microbatch) override { handles_.erase(microbatch); }
  void give_up(std::string_view why) noexcept override { tell_others(group_, why); }

  std::optional<TransportStatistics> statistics() const override {
    return transport_->statistics();
  }
  void check() const override { transport_->check(); }

  Pending<PrepareResult> prepare_async(const PrepareInput& input,
                                       const CallContext& context) override;
  Pending<void> finalize_async(const FinalizeInput& input, const CallContext& context) override;

 private:
  // The rows to make room for if this rank brings so many tokens.  Collective between hosts.
  int64_t room_for(int64_t num_tokens);
  Pending<DispatchOutput> start_dispatch(DispatchInput request, const CallContext& context);

  Group& group_;
  std::optional<int64_t> capacity_;  // see MoeLayerOptions
  std::shared_ptr<HighThroughput> transport_;
  // By micro-batch: the dispatch whose combine is still to come.
  std::map<int, std::shared_ptr<const DispatchHandle>> handles_;
};

// The result is at least 1, because a capacity of 0 would make the host wait for the row count.
int64_t HighThroughputPrepareFinalize::room_for(int64_t num_tokens) {
  int64_t all_tokens = num_tokens;
  all_reduce_sum(group_, "tokens of a dispatch", {&all_tokens, 1});
  const int64_t most = std::max<int64_t>(1, all_tokens);
  return *capacity_ > 0 ? std::min(*capacity_, most) : most;
}

// When rows arrive in waves, the call's stream does not wait for the whole dispatch.
Pending<DispatchOutput> HighThroughputPrepareFinalize::start_dispatch(DispatchInput request,
                                                                      const CallContext& context) {
  const auto start = [&](const Stream& stream) {
    return in_flight<DispatchOutput>("dispatch", context, stream, [&] {
      request.capacity = capacity_ ? room_for(request.topk_ids.dim(0)) : 0;
      return transport_->dispatch_async(request, stream);
    });
  };
  if (request.early_rows == 0) {
    return start_transfer<DispatchOutput>(context, start);
  }
  expect(context.transfers.has_value(), "early_rows without a stream for transfers");
  context.transfers->wait(context.stream.record());
  auto pending = std::make_shared<Pending<DispatchOutput>>(start(*context.transfers));
  return {pending->hook, [pending, stream = context.stream] {
            DispatchOutput output = pending->receive();
            if (output.arrivals) {
              output.arrivals.await_ids(stream);
            } else {
              stream.wait(output.event);
            }
            return output;
          }};
}

Pending<PrepareResult> HighThroughputPrepareFinalize::prepare_async(const PrepareInput& input,
                                                                    const CallContext& context) {
  expect_prepare_input(input, context);
  expect_extras(input, traits());
  const Tensor x = weighted_input(input, context);
  const auto spec = travel_quant_spec(input);
  const bool before = spec && quantizes_by_row(*spec, input.quant->a1);
  const bool scales_travel = before && !has_one_static_scale(*spec, input.quant->a1);
  DispatchInput request;
  request.topk_ids = input.topk_ids;
  request.topk_weights = input.topk_weights;
  if (before) {
    const QuantizedRows rows = quantize_to_workspace(x, {*spec, input.quant->a1}, context);
    request.payloads = {rows.values};
    if (scales_travel) {
      request.payloads.push_back(rows.scale);
      if (hands_over_own_rows(input)) {
        input.own_rows->x = rows.values;
        input.own_rows->x_scale = rows.scale;
      }
    }
  } else {
    request.payloads = {x};
  }
  if (input.lora_ids) {
    request.payloads.push_back(input.lora_ids);
  }
  const size_t first_extra = request.payloads.size();
  request.payloads.insert(request.payloads.end(), input.extras.begin(), input.extras.end());
  if (input.own_rows != nullptr) {
    input.own_rows->transfer_begin = context.stream.record();
  }
  request.combine_row_bytes = row_bytes(x.dtype(), x.dim(1));
  const bool has_lora = input.lora_ids.defined();
  request.early_rows = input.early_rows;
  request.most_early_rows = input.most_early_rows;
  auto pending =
      std::make_shared<Pending<DispatchOutput>>(start_dispatch(std::move(request), context));
  const QuantDesc a1 = input.quant->a1;

  return {pending->hook,
          [this, pending, before, scales_travel, has_lora, first_extra, spec, a1, context] {
            DispatchOutput received = pending->receive();
            handles_[context.microbatch] = received.handle;
            PrepareResult result;
            if (has_lora) {
              result.lora_ids = received.payloads[first_extra - 1];
            }
            result.extras.assign(
                received.payloads.begin() + static_cast<std::ptrdiff_t>(first_extra),
                received.payloads.end());
            result.x = received.payloads[0];
            if (received.num_rows && quant::scales_over_rows(a1)) {
              clear_rows_after(result.x, received.num_rows, context.stream);
            }
            if (before) {
              result.x_scale = scales_travel ? received.payloads[1] : a1.scale.view({1, 1});
            } else if (spec) {
              const QuantizedRows rows = quantize_to_workspace(result.x, {*spec, a1}, context);
              result.x = rows.values;
              result.x_scale = rows.scale;
            }
            result.topk_ids = received.topk_ids;
            result.topk_weights = received.topk_weights;
            result.expert_num_tokens = received.expert_num_tokens;
            result.most_rows = received.handle->most_rows();
            result.arrivals = received.arrivals;
            return result;
          }};
}

Pending<void> HighThroughputPrepareFinalize::finalize_async(const FinalizeInput& input,
                                                            const CallContext& context) {
  const std::shared_ptr<const DispatchHandle> handle = prepared_call(handles_, context);

  CombineInput request;  // ranks without rows still take part in combine
  request.x = reduced_rows(input, handle->num_rows(), context);
  request.first_column = input.first_column;
  request.addend = input.addend;
  if (request.first_column + request.x.dim(1) == input.output.dim(1)) {
    handles_.erase(context.microbatch);
  }
  using Combined = CombineOutput;
  auto pending = std::make_shared<Pending<Combined>>(
      start_transfer<Combined>(context, [&](const Stream& stream) {
        return in_flight<Combined>("combine", context, stream, [&] {
          return transport_->combine_async(request, *handle, stream, input.output);
        });
      }));
  return {pending->hook, [pending, handle] { pending->receive(); }};
}

}  // namespace

std::unique_ptr<PrepareFinalize> make_high_throughput(std::shared_ptr<HighThroughput> transport,
                                                      std::optional<int64_t> capacity) {
  expect(transport != nullptr, "the high-throughput transport is missing");
  if (capacity) {
    expect_ge(*capacity, 0, "capacity");
    const Group& group = transport->group();
    if (const int num_nodes = group.topology().num_nodes(); !goes_in_kernels(group)) {
      throw Unsupported(fmt::format(
          "high_throughput with a capacity is for GPUs of one node, these ranks are on {}",
          num_nodes > 1 ? fmt::format("{} nodes", num_nodes) : "CPUs"));
    }
  }
  return std::make_unique<HighThroughputPrepareFinalize>(std::move(transport), capacity);
}

}  // namespace moebius
