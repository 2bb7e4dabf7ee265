// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/high_throughput/transport.h"

#include "comm/high_throughput/cuda/make_transport.h"
#include "comm/high_throughput/into.h"
#include "comm/routing/same_placement.h"
#include "core/ids.h"
#include "core/overlap.h"
#include "core/same_device.h"

namespace moebius {

namespace {

// Why it is bounded: counts that are rounded up to it have 32 bits.
void expect_expert_alignment(int64_t alignment) {
  constexpr int64_t kMax = 65536;
  expect_ge(alignment, 1, "expert_alignment");
  expect_le(alignment, kMax, "expert_alignment");
}

}  // namespace

HighThroughput::HighThroughput(Group& group,
                               ExpertPlacement placement,
                               std::optional<DispatchConfig> dispatch_config,
                               std::optional<DispatchConfig> combine_config) {
  const Device device = group.device();
  expect_same_placement(group, "high throughput", placement);
  const DispatchConfig dispatch =
      dispatch_config.value_or(DispatchConfig::for_dispatch(group.size(), device));
  const DispatchConfig combine =
      combine_config.value_or(DispatchConfig::for_combine(group.size(), device));
  dispatch.validate();
  combine.validate();
  expect_placed(placement, group);
  state_ = device.is_cuda()
               ? comm::make_cuda_high_throughput(group, std::move(placement), dispatch, combine)
               : make_cpu_high_throughput(group, std::move(placement));
  state_->configs = {dispatch, combine};
}

HighThroughput::~HighThroughput() = default;

Group& HighThroughput::group() const {
  return state_->group;
}
const ExpertPlacement& HighThroughput::placement() const {
  return state_->placement;
}
const DispatchConfig& HighThroughput::dispatch_config() const {
  return state_->configs.dispatch;
}
const DispatchConfig& HighThroughput::combine_config() const {
  return state_->configs.combine;
}
int64_t HighThroughput::bytes() const {
  return state_->bytes();
}

DispatchLayout HighThroughput::layout(const Tensor& topk_ids,
                                      const Stream& stream,
                                      const DispatchLayout& into) const {
  for (const Tensor* counts : {&into.tokens_per_rank, &into.tokens_per_node,
                               &into.tokens_per_expert, &into.is_token_in_rank}) {
    expect_apart(*counts, topk_ids, "a tensor of into", "topk_ids");
  }
  return state_->layout(topk_ids, stream, into);
}

Pending<DispatchOutput> HighThroughput::dispatch_async(const DispatchInput& input,
                                                       const Stream& stream) {
  expect_expert_alignment(input.expert_alignment);
  const std::optional<DispatchRoom> room = make_dispatch_room(input, state_->group.device());
  Pending<DispatchOutput> pending = state_->dispatch_async(input, stream);
  if (!room) {
    return pending;
  }
  return {pending.hook, [receive = std::move(pending.receive), room, stream] {
            DispatchOutput output = receive();
            room->expect_room_for(output.handle->most_rows());
            room->move_in(output, stream);
            return output;
          }};
}

DispatchOutput HighThroughput::dispatch(const DispatchInput& input, const Stream& stream) {
  return dispatch_async(input, stream).finish();
}

Pending<DispatchOutput> HighThroughput::dispatch_cached_async(const CachedDispatchInput& input,
                                                              const DispatchHandle& handle,
                                                              const Stream& stream) {
  const std::optional<DispatchRoom> room = make_dispatch_room(input, state_->group.device());
  if (!room) {
    return state_->dispatch_cached_async(input, handle, stream);
  }
  room->expect_room_for(handle.most_rows());
  Pending<DispatchOutput> pending = state_->dispatch_cached_async(input, handle, stream);
  return {pending.hook, [receive = std::move(pending.receive), room, stream] {
            DispatchOutput output = receive();
            room->move_in(output, stream);
            return output;
          }};
}

DispatchOutput HighThroughput::dispatch_cached(const CachedDispatchInput& input,
                                               const DispatchHandle& handle,
                                               const Stream& stream) {
  return dispatch_cached_async(input, handle, stream).finish();
}

void HighThroughput::set_configs(const DispatchConfig& dispatch_config,
                                 const DispatchConfig& combine_config) {
  dispatch_config.validate();
  combine_config.validate();
  const State::Configs configs{dispatch_config, combine_config};
  state_->expect_configs(configs);
  state_->configs = configs;
}

ExpertOrder HighThroughput::expert_order(const DispatchOutput& output,
                                         int64_t expert_alignment,
                                         const Stream& stream) const {
  expect_expert_alignment(expert_alignment);
  expect_defined(output.topk_ids, "topk_ids of the dispatch");
  return state_->expert_order(output, expert_alignment, stream);
}

Pending<CombineOutput> HighThroughput::combine_async(const CombineInput& input,
                                                     const DispatchHandle& handle,
                                                     const Stream& stream,
                                                     const Tensor& out_x) {
  if (input.addend && !state_->takes_addend()) {
    throw Unsupported("the addend of a combine is for GPUs of one node");
  }
  if (const Tensor& into = input.topk_weights_into) {
    expect_defined(input.topk_weights, "topk_weights for topk_weights_into");
    expect_shape(into, {handle.num_tokens(), input.topk_weights.shape().back()},
                 "topk_weights_into");
    expect_dtype(into, DType::kF32, "topk_weights_into");
    expect_on(into, state_->group.device(), "topk_weights_into");
    expect_writable(into, "topk_weights_into");
    expect_apart(into, input.topk_weights, "topk_weights_into", "topk_weights");
  }
  expect_apart(out_x, input.x, "the output", "x");
  for (const Tensor& bias : input.bias) {
    if (bias.raw() != out_x.raw() || bias.shape() != out_x.shape()) {
      expect_apart(out_x, bias, "the output", "a bias that is not it");
    }
  }
  return state_->combine_async({input, handle, stream, out_x});
}

CombineOutput HighThroughput::combine(const CombineInput& input,
                                      const DispatchHandle& handle,
                                      const Stream& stream,
                                      const Tensor& out_x) {
  return combine_async(input, handle, stream, out_x).finish();
}

DispatchLayout place_layout(const DispatchLayout& into,
                            int64_t num_tokens,
                            const ExpertPlacement& placement,
                            const Group& group,
                            const std::function<Tensor(const Shape&, DType)>& take) {
  const auto place = [&](const Tensor& given, const Shape& shape, DType dtype,
                         std::string_view what) {
    if (!given) {
      return take(shape, dtype);
    }
    expect_operand(given, shape, dtype, group.device(), what);
    expect_writable(given, what);
    return given;
  };
  return {.tokens_per_rank =
              place(into.tokens_per_rank, {group.size()}, DType::kI32, "tokens_per_rank of into"),
          .tokens_per_node = place(into.tokens_per_node, {group.topology().num_nodes()},
                                   DType::kI32, "tokens_per_node of into"),
          .tokens_per_expert = place(into.tokens_per_expert, {placement.num_experts()}, DType::kI32,
                                     "tokens_per_expert of into"),
          .is_token_in_rank = place(into.is_token_in_rank, {num_tokens, group.size()}, DType::kBool,
                                    "is_token_in_rank of into")};
}

int64_t num_tokens_of(const DispatchInput& input) {
  return (input.topk_ids ? input.topk_ids : input.layout.is_token_in_rank).dim(0);
}

int64_t topk_of(const DispatchInput& input) {
  return input.topk_ids ? input.topk_ids.dim(1) : 0;
}

RowLayout::Routing routing_of(const DispatchInput& input, const Topology& topology) {
  const auto row_bytes_of = [](const Tensor& t) { return t ? row_bytes(t.dtype(), t.dim(1)) : 0; };
  if (!input.topk_ids) {
    return {topology.num_nodes() > 1 ? topology.size : 0, 0};
  }
  return {row_bytes_of(input.topk_ids), row_bytes_of(input.topk_weights)};
}

void expect_routing(const DispatchInput& input,
                    const ExpertPlacement& placement,
                    const Group& group) {
  const Device device = group.device();
  if (input.topk_ids || !has_layout(input)) {
    expect_id_dtype(input.topk_ids, "topk_ids");
    expect_eq(input.topk_ids.num_dims(), 2, "dimensions of topk_ids");
    expect_ge(input.topk_ids.dim(1), 1, "topk");
    expect_on(input.topk_ids, device, "topk_ids");
    expect_operand(input.topk_weights, input.topk_ids.shape(), DType::kF32, device, "topk_weights");
  } else {
    expect(!input.topk_weights, "topk_weights without topk_ids");
    expect_eq(input.layout.is_token_in_rank.num_dims(), 2, "dimensions of is_token_in_rank");
  }
  if (has_layout(input)) {
    expect_operand(input.layout.is_token_in_rank, {num_tokens_of(input), group.size()},
                   DType::kBool, device, "is_token_in_rank");
    expect_defined(input.layout.tokens_per_expert, "tokens_per_expert");
    expect_operand(input.layout.tokens_per_expert, {placement.num_experts()}, DType::kI32, device,
                   "tokens_per_expert");
  }
}

int64_t expect_combine_weights(const CombineInput& input,
                               int64_t num_rows,
                               int64_t topk,
                               Device device) {
  const Tensor& weights = input.topk_weights;
  if (!weights) {
    return 0;
  }
  expect_eq(weights.num_dims(), 2, "dimensions of topk_weights");
  const int64_t expected = topk > 0 ? topk : weights.dim(1);
  expect_operand(weights, {num_rows, expected}, DType::kF32, device, "topk_weights");
  return expected;
}

void expect_combine_output(const Tensor& out_x,
                           int64_t first_column,
                           const Shape& shape,
                           DType dtype) {
  expect_ge(first_column, 0, "first_column");
  if (!out_x) {
    expect_eq(first_column, 0, "first_column without out_x");
    return;
  }
  expect_dtype(out_x, dtype, "out_x");
  expect_writable(out_x, "out_x");
  expect_eq(out_x.num_dims(), 2, "dimensions of out_x");
  expect_eq(out_x.dim(0), shape[0], "rows of out_x");
  expect_ge(out_x.dim(1), first_column + shape[1], "columns of out_x");
}

TransportStatistics HighThroughput::statistics() const {
  return state_->statistics();
}

void HighThroughput::trim() {
  state_->trim();
}

void HighThroughput::check() const {
  state_->check();
}

}  // namespace moebius
