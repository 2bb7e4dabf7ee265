// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/high_throughput/transport.h"

#include "comm/high_throughput/cuda/make_transport.h"

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

DispatchLayout HighThroughput::layout(const Tensor& topk_ids, const Stream& stream) const {
  return state_->layout(topk_ids, stream);
}

Pending<DispatchOutput> HighThroughput::dispatch_async(const DispatchInput& input,
                                                       const Stream& stream) {
  expect_expert_alignment(input.expert_alignment);
  return state_->dispatch_async(input, stream);
}

DispatchOutput HighThroughput::dispatch(const DispatchInput& input, const Stream& stream) {
  return dispatch_async(input, stream).finish();
}

DispatchOutput HighThroughput::dispatch_cached(std::span<const Tensor> payloads,
                                               const DispatchHandle& handle,
                                               const Stream& stream) {
  return state_->dispatch_cached(payloads, handle, stream);
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
  return state_->combine_async({input, handle, stream, out_x});
}

CombineOutput HighThroughput::combine(const CombineInput& input,
                                      const DispatchHandle& handle,
                                      const Stream& stream,
                                      const Tensor& out_x) {
  return combine_async(input, handle, stream, out_x).finish();
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
  expect_eq(out_x.num_dims(), 2, "dimensions of out_x");
  expect_eq(out_x.dim(0), shape[0], "rows of out_x");
  expect_ge(out_x.dim(1), first_column + shape[1], "columns of out_x");
}

TransportStatistics HighThroughput::statistics() const {
  return state_->statistics();
}

void HighThroughput::check() const {
  state_->check();
}

}  // namespace moebius
