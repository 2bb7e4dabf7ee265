// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/high_throughput/cuda/transport_base.h"

#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "comm/routing/cuda/routing_tables.h"
#include "comm/routing/payloads.h"
#include "comm/routing/route.h"
#include "core/allocate.h"
#include "core/cuda/runtime.h"
#include "core/same_device.h"

namespace moebius::comm {

namespace {

// Waits for the stream.
template <typename T>
T read_now(const T* on_device, const Stream& stream) {
  T value{};
  cuda::copy(&value, on_device, sizeof(T), stream.native_handle(), stream.device().index);
  stream.synchronize();
  return value;
}

// value_of(e) for every expert.
Tensor upload_by_expert(const ExpertPlacement& placement, Device device, auto value_of) {
  std::vector<int32_t> values;
  for (int64_t e = 0; e < placement.num_experts(); ++e) {
    values.push_back(static_cast<int32_t>(value_of(e)));
  }
  return upload(values, device);
}

}  // namespace

bool has_whole_words(const Tensor& t, int64_t row_bytes) {
  return !t || (reinterpret_cast<uintptr_t>(t.raw()) % 16 == 0 && row_bytes % 16 == 0);
}

CudaHighThroughputBase::CudaHighThroughputBase(Group& g, ExpertPlacement p)
    : State(g, std::move(p)),
      device_(g.device()),
      num_experts_(static_cast<int>(placement.num_experts())),
      num_local_(static_cast<int>(placement.num_local(group.rank()))),
      rank_of_(
          upload_by_expert(placement, device_, [&](int64_t e) { return placement.rank_of(e); })),
      local_of_(upload_by_expert(
          placement, device_, [&](int64_t e) { return placement.local_index(e); })),
      node_of_(upload_by_expert(
          placement,
          device_,
          [&](int64_t e) { return group.topology().node_of(placement.rank_of(e)); })),
      arena_(device_),
      bad_id_(sizeof(uint64_t), device_.index) {
  std::atomic_ref(*bad_id_.host_as<uint64_t>()).store(kNoBadId);
  expect_le(group.size(), kMaxCudaRanks, "ranks of a high-throughput dispatch on CUDA");
}

void CudaHighThroughputBase::expect_ids_tensor(const Tensor& topk_ids) const {
  expect_id_dtype(topk_ids, "topk_ids");
  expect_eq(topk_ids.num_dims(), 2, "dimensions of topk_ids");
  expect_on(topk_ids, device_, "topk_ids");
}

void CudaHighThroughputBase::expect_dispatch(const DispatchInput& input,
                                             const Stream& stream) const {
  expect_routing(input, placement, group);
  expect_stream(stream, device_);
  expect_le(topk_of(input), kMaxCudaTopk, "topk of a dispatch on CUDA");
  expect_ge(input.capacity, 0, "capacity");
  expect_ge(input.combine_row_bytes, 0, "combine_row_bytes");
  expect_ge(input.early_rows, 0, "early_rows");
  expect_ge(input.most_early_rows, 0, "most_early_rows");
  expect(input.early_rows == 0 || input.capacity == 0, [&] {
    return fmt::format("early_rows {} with a capacity ({}): the host has to know the rows",
                       input.early_rows, input.capacity);
  });
}

int64_t CudaHighThroughputBase::expect_combine(const CombineInput& input,
                                               int64_t num_rows,
                                               int64_t num_tokens,
                                               int64_t topk,
                                               const Stream& stream,
                                               const Tensor& out_x) const {
  const Tensor& x = input.x;
  expect_defined(x, "x");
  expect(is_float(x.dtype()),
         [&] { return fmt::format("x dtype is {}, expected f32, f16 or bf16", name(x.dtype())); });
  expect_eq(x.num_dims(), 2, "dimensions of x");
  expect_eq(x.dim(0), num_rows, "rows of x");
  expect_on(x, device_, "x");
  const Shape shape = {num_tokens, x.dim(1)};
  for (const Tensor& bias : input.bias) {
    expect_operand(bias, shape, x.dtype(), device_, "bias");
  }
  expect_combine_output(out_x, input.first_column, shape, x.dtype());
  if (out_x) {
    expect_on(out_x, device_, "out_x");
  }
  expect_operand(input.addend, out_x ? out_x.shape() : shape, x.dtype(), device_, "addend");
  expect_stream(stream, device_);
  const int64_t num_weights = expect_combine_weights(input, num_rows, topk, device_);
  expect_le(num_weights, kMaxCudaTopk, "topk_weights.dim(1) of a combine on CUDA");
  return num_weights;
}

void CudaHighThroughputBase::expect_good_layouts() {
  const std::atomic_ref word(*bad_id_.host_as<uint64_t>());
  if (word.load(std::memory_order_relaxed) != kNoBadId) {
    const uint64_t bad = word.exchange(kNoBadId);
    throw_bad_id(static_cast<int64_t>(bad >> 32), topk_of_layout_, static_cast<int32_t>(bad),
                 num_experts_);
  }
}

DispatchLayout CudaHighThroughputBase::layout(const Tensor& topk_ids,
                                              const Stream& stream,
                                              const DispatchLayout& into) {
  expect_good_layouts();
  expect_ids_tensor(topk_ids);
  expect_stream(stream, device_);
  const int64_t num_tokens = topk_ids.dim(0);
  const int64_t topk = topk_ids.dim(1);
  topk_of_layout_ = topk;
  const Launch launched = launch_on(stream);
  const int num_nodes = group.topology().num_nodes();
  DispatchLayout result = place_layout(
      into, num_tokens, placement, group,
      [&](const Shape& shape, DType dtype) { return arena_.take(shape, dtype, launched); });
  LayoutArgs args{};
  args.ids = Ids::of(topk_ids);
  args.num_tokens = num_tokens;
  args.topk = static_cast<int>(topk);
  args.num_experts = num_experts_;
  args.num_ranks = group.size();
  args.rank_of = rank_of_.data<int32_t>();
  args.tokens_per_rank = result.tokens_per_rank.data<int32_t>();
  args.tokens_per_node = result.tokens_per_node.data<int32_t>();
  args.tokens_per_expert = result.tokens_per_expert.data<int32_t>();
  args.is_token_in_rank = result.is_token_in_rank.data<bool>();
  args.bad_id = bad_id_.device_as<unsigned long long>();
  launch_layout(args, stream);
  if (num_nodes > 1) {  // on one node tokens_per_node is known already
    launch_route({.ids = args.ids,
                  .num_tokens = num_tokens,
                  .topk = args.topk,
                  .num_experts = num_experts_,
                  .destination_of = node_of_.data<int32_t>(),
                  .num_destinations = num_nodes,
                  .copies = args.tokens_per_node},
                 stream);
  }
  return result;
}

ExpertOrder CudaHighThroughputBase::expert_order(const DispatchOutput& output,
                                                 int64_t expert_alignment,
                                                 const Stream& stream) const {
  expect_ids_tensor(output.topk_ids);
  expect_stream(stream, device_);
  stream.wait(output.event);
  const int64_t num_ids = output.topk_ids.numel();
  const std::shared_ptr<void> starts =
      allocate_on(expert_starts_bytes(num_ids, num_local_), stream);
  ExpertOrder order;
  order.expert_offsets = Tensor::empty({num_local_ + 1}, DType::kI32, device_);
  ExpertOrderArgs args{};
  args.ids = Ids::of(output.topk_ids);
  args.num_ids = num_ids;
  args.topk = static_cast<int>(output.topk_ids.dim(1));
  args.num_local = num_local_;
  args.alignment = static_cast<int>(expert_alignment);
  args.starts = static_cast<int32_t*>(starts.get());
  args.expert_offsets = order.expert_offsets.data<int32_t>();
  launch_expert_offsets(args, stream);
  const int64_t rows = read_now(args.expert_offsets + num_local_, stream);

  order.copy_row = Tensor::empty({rows}, DType::kI32, device_);
  order.slot = Tensor::empty({rows}, DType::kI32, device_);
  args.copy_row = order.copy_row.data<int32_t>();
  args.slot = order.slot.data<int32_t>();
  launch_expert_rows(args, stream);
  for (const Tensor& payload : output.payloads) {
    const Tensor sorted = Tensor::empty(with_rows(payload, rows), payload.dtype(), device_);
    launch_gather_rows(payload, order.copy_row, sorted, stream);
    order.payloads.push_back(sorted);
  }
  return order;
}

}  // namespace moebius::comm
