// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/low_latency/transport.h"

#include <fmt/format.h>

#include "comm/low_latency/cpu/message_layout.h"
#include "comm/low_latency/cuda/cuda_transport.h"
#include "core/deferred_release.h"
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
      fmt::format("call {} of a low-latency dispatch needs the bank of call {}, whose result is "
                  "still alive: at most 2 results are, and each call takes the bank of the call "
                  "before last",
                  call, call - 2));
}

LowLatency::State::State(Group& g, ExpertPlacement p, const LowLatencyOptions& o)
    : group(g), placement(std::move(p)), options(o), dead(static_cast<size_t>(g.size()), false) {}

LowLatency::State::~State() = default;

Tensor LowLatency::State::make_out(const LowLatencyCombineInput& input) const {
  expect_defined(input.topk_ids, "topk_ids");
  return Tensor::empty({input.topk_ids.dim(0), options.hidden}, options.in_dtype, group.device());
}

void LowLatency::State::expect_dispatch(const LowLatencyDispatchInput& input) const {
  release_finished();  // a result may have been waiting for a stream
  const Tensor& x = input.x;
  const Tensor& topk_ids = input.topk_ids;
  const bool is_cast = input.cast != LowLatencyCast::kNone;
  expect_eq(topk_ids.num_dims(), 2, "dimensions of topk_ids");
  expect_eq(topk_ids.dim(1), options.topk, "topk_ids.dim(1)");
  const int64_t num_tokens = topk_ids.dim(0);
  expect_le(num_tokens, options.max_tokens, "tokens of a low-latency dispatch");
  expect_ids_here(topk_ids, {num_tokens, options.topk});
  expect_here(x, {num_tokens, options.hidden}, options.in_dtype, "x");
  if (input.row_tags) {
    expect_here(input.row_tags, {num_tokens}, DType::kI32, "row_tags");
  }
  if (is_cast) {
    expect_multiple_of(options.hidden, LowLatencyLayout::kScaleGroup,
                       "hidden of a low-latency dispatch with an fp8 cast");
    if (group.device().is_cuda()) {
      expect_multiple_of(static_cast<int64_t>(reinterpret_cast<uintptr_t>(x.raw())), 16,
                         "the address of x of a low-latency dispatch with an fp8 cast");
    }
  }
  expect_into(input.into, is_cast);
}

void LowLatency::State::expect_into(const LowLatencyInto& into, bool is_cast) const {
  const auto expect_fits = [&](const Tensor& tensor, const Shape& shape, DType dtype,
                               std::string_view what) {
    if (tensor) {
      expect_here(tensor, shape, dtype, what);
      expect_writable(tensor, what);
    }
  };
  expect_fits(into.x, {num_local(), max_rows(), options.hidden},
              is_cast ? DType::kF8E4M3 : options.in_dtype, "x of into");
  if (into.x && group.device().is_cuda()) {
    expect_multiple_of(static_cast<int64_t>(reinterpret_cast<uintptr_t>(into.x.raw())), 16,
                       "the address of x of into");
  }
  expect(is_cast || !into.x_scale, "x_scale of into without a cast");
  expect_fits(into.x_scale,
              {num_local(), max_rows(), options.hidden / LowLatencyLayout::kScaleGroup},
              DType::kF32, "x_scale of into");
  expect_fits(into.expert_num_tokens, {num_local()}, DType::kI32, "expert_num_tokens of into");
  expect_fits(into.row_tags, {num_local(), max_rows()}, DType::kI32, "row_tags of into");
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
  expect_writable(out, "out");
}

LowLatency::LowLatency(Group& group, ExpertPlacement placement, const LowLatencyOptions& options) {
  expect_valid(options);
  expect_placed(placement, group);
  state_ = group.device().is_cuda() ? make_cuda_low_latency(group, std::move(placement), options)
                                    : make_cpu_low_latency(group, std::move(placement), options);
}

LowLatency::~LowLatency() = default;

Group& LowLatency::group() const {
  return state_->group;
}
const ExpertPlacement& LowLatency::placement() const {
  return state_->placement;
}
const LowLatencyOptions& LowLatency::options() const {
  return state_->options;
}
int64_t LowLatency::bytes() const {
  return state_->bytes();
}

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
