// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/low_latency/transport.h"

#include <fmt/format.h>

#include "comm/low_latency/cpu/message_layout.h"
#include "comm/low_latency/cuda/cuda_transport.h"
#include "core/ids.h"
#include "moebius/low_latency.h"

namespace moebius {

void expect_valid(const LowLatencyOptions& options) {
  expect_ge(options.max_tokens, 1, "max_tokens");
  expect_ge(options.hidden, 1, "hidden");
  expect_ge(options.topk, 1, "topk");
  expect(is_float(options.in_dtype), [&] {
    return fmt::format("in_dtype is {}, expected bf16, f16 or f32", name(options.in_dtype));
  });
}

void throw_third_result(int64_t call) {
  throw InvalidArgument(
      fmt::format("call {} of a low-latency dispatch would be the third live result: those of "
                  "calls {} and {} are still held",
                  call, call - 2, call - 1));
}

LowLatency::State::State(Group& g, ExpertPlacement p, const LowLatencyOptions& o)
    : group(g), placement(std::move(p)), options(o), dead(static_cast<size_t>(g.size()), false) {}

LowLatency::State::~State() = default;

Tensor LowLatency::State::make_out(const LowLatencyCombineInput& input) const {
  expect_defined(input.topk_ids, "topk_ids");
  return Tensor::empty({input.topk_ids.dim(0), options.hidden}, options.in_dtype, group.device());
}

void LowLatency::State::expect_dispatch(const LowLatencyDispatchInput& input) const {
  const auto& [x, topk_ids, cast, row_tags, previous, records_event] = input;
  expect_eq(topk_ids.num_dims(), 2, "dimensions of topk_ids");
  expect_eq(topk_ids.dim(1), options.topk, "topk_ids.dim(1)");
  const int64_t num_tokens = topk_ids.dim(0);
  expect_le(num_tokens, options.max_tokens, "tokens of a low-latency dispatch");
  expect_ids_here(topk_ids, {num_tokens, options.topk});
  expect_here(x, {num_tokens, options.hidden}, options.in_dtype, "x");
  if (row_tags) {
    expect_here(row_tags, {num_tokens}, DType::kI32, "row_tags");
  }
  if (cast != LowLatencyCast::kNone) {
    expect_multiple_of(options.hidden, LowLatencyLayout::kScaleGroup,
                       "hidden of a low-latency dispatch with an fp8 cast");
    if (group.device().is_cuda()) {
      expect_multiple_of(static_cast<int64_t>(reinterpret_cast<uintptr_t>(x.raw())), 16,
                         "the address of x of a low-latency dispatch with an fp8 cast");
    }
  }
}

void LowLatency::State::expect_room(int64_t expert, int64_t num_selections) const {
  if (num_selections > options.max_tokens) {
    throw InvalidArgument(
        fmt::format("tokens of rank {} name expert {} {} times, expected at most {} (max_tokens)",
                    group.rank(), expert, num_selections, options.max_tokens));
  }
}

void LowLatency::State::expect_here(const Tensor& tensor,
                                    const Shape& shape,
                                    DType dtype,
                                    std::string_view what) const {
  expect_shape(tensor, shape, what);
  expect_dtype(tensor, dtype, what);
  expect(tensor.device() == group.device() || tensor.numel() == 0, [&] {
    return fmt::format("{} is on {}, the group is on {}", what, to_string(tensor.device()),
                       to_string(group.device()));
  });
}

void LowLatency::State::expect_ids_here(const Tensor& topk_ids, const Shape& shape) const {
  expect_id_dtype(topk_ids, "topk_ids");
  expect_here(topk_ids, shape, topk_ids.dtype(), "topk_ids");
}

void LowLatency::State::expect_combine(const LowLatencyCombineInput& input,
                                       int64_t num_tokens,
                                       const Tensor& out) const {
  const auto& [x, topk_ids, topk_weights, previous, records_event] = input;
  const Shape slots = {num_tokens, options.topk};
  expect_ids_here(topk_ids, slots);
  expect_here(topk_weights, slots, DType::kF32, "topk_weights");
  expect_here(x, {num_local(), max_rows(), options.hidden}, options.in_dtype, "x");
  expect_here(out, {num_tokens, options.hidden}, options.in_dtype, "out");
}

LowLatency::LowLatency(Group& group, ExpertPlacement placement, const LowLatencyOptions& options) {
  expect_valid(options);
  expect_placed(placement, group);
  state_ = group.device().is_cuda() ? make_cuda_low_latency(group, std::move(placement), options)
                                    : make_cpu_low_latency(group, std::move(placement), options);
}

LowLatency::~LowLatency() = default;

int64_t LowLatency::size_hint(const LowLatencyOptions& options,
                              int num_ranks,
                              int64_t num_experts,
                              Device device) {
  expect_valid(options);
  return device.is_cuda()
             ? cuda_low_latency_bytes(options, num_ranks, (num_experts + num_ranks - 1) / num_ranks)
             : LowLatencyLayout::make(options, num_ranks).bytes();
}

LowLatencyDispatchOutput LowLatency::dispatch(const LowLatencyDispatchInput& input,
                                              const Stream& stream) {
  return state_->dispatch(input, stream);
}

Pending<LowLatencyDispatchOutput> LowLatency::dispatch_async(const LowLatencyDispatchInput& input,
                                                             const Stream& stream) {
  return state_->dispatch_async(input, stream);
}

LowLatencyCombineOutput LowLatency::combine(const LowLatencyCombineInput& input,
                                            const LowLatencyHandle& handle,
                                            const Stream& stream,
                                            const Tensor& out_x) {
  return state_->combine({input, handle, stream, out_x ? out_x : state_->make_out(input)});
}

Pending<LowLatencyCombineOutput> LowLatency::combine_async(const LowLatencyCombineInput& input,
                                                           const LowLatencyHandle& handle,
                                                           const Stream& stream,
                                                           const Tensor& out_x) {
  return state_->combine_async({input, handle, stream, out_x ? out_x : state_->make_out(input)});
}

void LowLatency::check() const {
  state_->check();
}

void LowLatency::set_dead(int rank, bool dead) {
  expect(rank >= 0 && rank < state_->group.size() && rank != state_->group.rank(), [&] {
    return fmt::format("rank {} cannot be marked dead by rank {} of {}", rank, state_->group.rank(),
                       state_->group.size());
  });
  state_->set_dead(rank, dead);
}

std::vector<bool> LowLatency::dead_ranks() const {
  return state_->dead;
}

TransportStatistics LowLatency::statistics() const {
  return state_->statistics();
}

Tensor LowLatency::expert_statistics() const {
  return state_->expert_statistics();
}

void LowLatency::reset_statistics() {
  state_->reset_statistics();
}

}  // namespace moebius
