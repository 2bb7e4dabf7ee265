// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/low_latency/transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/group/window_limit.h"
#include "comm/low_latency/cpu/message_layout.h"
#include "comm/low_latency/cuda/make_transport.h"
#include "comm/low_latency/logfmt.h"
#include "comm/low_latency/same_options.h"
#include "core/deferred_release.h"
#include "core/ids.h"
#include "moebius/low_latency.h"

namespace moebius {

namespace {

// No layout takes more, apart from words per rank and expert: each of its two banks has a message
// for every token of every rank and a returned row for every selection, and beside them words per
// selection and per part of a row.
double most_window_bytes(const LowLatencyOptions& options, int num_ranks) {
  const auto topk = static_cast<double>(options.topk);
  const double rows = static_cast<double>(options.max_tokens) * (num_ranks + topk);
  const double row_bytes = 5 * static_cast<double>(options.hidden) + 20 * topk + 512;
  return 2 * rows * row_bytes;
}

}  // namespace

void expect_valid(const LowLatencyOptions& options, int num_ranks) {
  expect_ge(num_ranks, 1, "num_ranks");
  comm::expect_count(options.max_tokens, 1, "max_tokens");
  comm::expect_count(options.hidden, 1, "hidden");
  comm::expect_count(options.topk, 1, "topk");
  comm::expect_count(options.max_tokens * num_ranks, 1, "max_tokens * num_ranks");
  comm::expect_window_bytes(most_window_bytes(options, num_ranks), num_ranks,
                            "a low-latency window");
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
  const LowLatencyCast cast = input.cast;
  expect_defined(topk_ids, "topk_ids");
  expect_eq(topk_ids.num_dims(), 2, "dimensions of topk_ids");
  expect_eq(topk_ids.dim(1), options.topk, "topk_ids.dim(1)");
  const int64_t num_tokens = topk_ids.dim(0);
  expect_ge(input.max_tokens, 0, "max_tokens of a low-latency dispatch");
  expect_le(input.max_tokens, options.max_tokens, "max_tokens of a low-latency dispatch");
  expect_le(num_tokens, room_of(input), "tokens of a low-latency dispatch");
  expect_ids_here(topk_ids, {num_tokens, options.topk});
  expect_rows(input, num_tokens);
  const auto expect_optional = [&](const Tensor& tensor, const Shape& shape, DType dtype,
                                   std::string_view what) {
    if (tensor) {
      expect_here(tensor, shape, dtype, what);
    }
  };
  expect_optional(input.row_tags, {num_tokens}, DType::kI32, "row_tags");
  expect_optional(input.received, {num_local()}, DType::kI32, "received");
  expect_optional(input.wait_us, {group.size()}, DType::kI64, "wait_us");
  expect_writable(input.received, "received");
  expect_writable(input.wait_us, "wait_us");
  expect(input.scales == LowLatencyScales::kRows || cast != LowLatencyCast::kNone,
         "scales in columns without a cast: they are those of the cast");
  expect(input.scales != LowLatencyScales::kPackedColumns || cast == LowLatencyCast::kFp8Ue8m0,
         "packed scales are powers of two: they need the cast kFp8Ue8m0");
  if (cast != LowLatencyCast::kNone) {
    expect_multiple_of(options.hidden, LowLatencyLayout::kScaleGroup,
                       "hidden of a low-latency dispatch with an fp8 cast");
    if (group.device().is_cuda()) {
      expect_multiple_of(static_cast<int64_t>(reinterpret_cast<uintptr_t>(x.raw())), 16,
                         "the address of x of a low-latency dispatch with an fp8 cast");
    }
  }
  expect_into(input);
}

void LowLatency::State::expect_into(const LowLatencyDispatchInput& input) const {
  const LowLatencyInto& into = input.into;
  const int64_t rows = room_of(input) * group.size();
  const auto expect_fits = [&](const Tensor& tensor, const TensorKind& kind,
                               std::string_view what) {
    if (tensor) {
      expect_here(tensor, kind.shape, kind.dtype, what);
      expect_writable(tensor, what);
    }
  };
  const auto expect_aligned = [&](const Tensor& tensor, std::string_view what) {
    if (tensor && group.device().is_cuda()) {
      expect_multiple_of(static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.raw())), 16, what);
    }
  };
  const TensorKind words{{num_local(), rows}, DType::kI32};
  expect_fits(into.x, rows_spec(input, rows), "x of into");
  expect_aligned(into.x, "the address of x of into");
  expect(!into.x_scale || row_of(input).scale_bytes > 0, "x_scale of into for rows without scales");
  expect_fits(into.x_scale, scale_spec(input, rows), "x_scale of into");
  expect_aligned(into.x_scale, "the address of x_scale of into");
  expect_fits(into.expert_num_tokens, {{num_local()}, DType::kI32}, "expert_num_tokens of into");
  expect_fits(into.row_tags, words, "row_tags of into");
  expect_fits(into.source_token, words, "source_token of into");
  expect_fits(into.source_ranges, {{num_local(), group.size()}, DType::kI64},
              "source_ranges of into");
}

void LowLatency::State::expect_rows(const LowLatencyDispatchInput& input,
                                    int64_t num_tokens) const {
  const Tensor& x = input.x;
  if (input.cast != LowLatencyCast::kNone) {
    expect(!input.x_scale, "x_scale with a cast, which makes its own scales");
  }
  if (input.cast != LowLatencyCast::kNone || (x && x.dtype() == options.in_dtype)) {
    expect_here(x, {num_tokens, options.hidden}, options.in_dtype, "x");
  } else {
    expect_defined(x, "x");
    expect_here(x, {num_tokens, options.hidden}, x.dtype(), "x");
  }
  if (input.x_scale) {
    expect_eq(input.x_scale.num_dims(), 2, "dimensions of x_scale");
    expect_here(input.x_scale, {num_tokens, input.x_scale.dim(1)}, input.x_scale.dtype(),
                "x_scale");
  }
  const LowLatencyLayout layout = LowLatencyLayout::make(options, group.size());
  const LowLatencyRow row = row_of(input);
  expect(row.value_bytes == layout.row_bytes() || row.value_bytes % 2 == 0, [&] {
    return fmt::format("rows of x have {} bytes, expected an even number", row.value_bytes);
  });
  expect_le(row.value_bytes, layout.row_bytes(), "bytes of a row of x");
  expect_le(row.bytes(), layout.max_row_bytes(), "bytes of a row of x and its scales");
}

LowLatencyRow LowLatency::State::row_of(const LowLatencyDispatchInput& input) const {
  if (input.cast != LowLatencyCast::kNone) {
    return {options.hidden, 4 * (options.hidden / LowLatencyLayout::kScaleGroup)};
  }
  const Tensor& scale = input.x_scale;
  return {row_bytes(input.x.dtype(), options.hidden),
          scale ? row_bytes(scale.dtype(), scale.dim(1)) : 0};
}

TensorKind LowLatency::State::rows_spec(const LowLatencyDispatchInput& input, int64_t rows) const {
  return {{num_local(), rows, options.hidden},
          input.cast == LowLatencyCast::kNone ? input.x.dtype() : DType::kF8E4M3};
}

TensorKind LowLatency::State::scale_spec(const LowLatencyDispatchInput& input, int64_t rows) const {
  const int64_t groups = options.hidden / LowLatencyLayout::kScaleGroup;
  if (input.cast == LowLatencyCast::kNone) {
    return input.x_scale
               ? TensorKind{{num_local(), rows, input.x_scale.dim(1)}, input.x_scale.dtype()}
               : TensorKind{};
  }
  switch (input.scales) {
    case LowLatencyScales::kColumns:
      return {{num_local(), groups, rows}, DType::kF32};
    case LowLatencyScales::kPackedColumns:
      return {{num_local(), (groups + 3) / 4, rows}, DType::kI32};
    default:
      return {{num_local(), rows, groups}, DType::kF32};
  }
}

void LowLatency::State::expect_room(int64_t expert, int64_t num_selections, int64_t room) const {
  if (num_selections > room) {
    throw InvalidArgument(
        fmt::format("tokens of rank {} name expert {} {} times, expected at most {} (max_tokens)",
                    group.rank(), expert, num_selections, room));
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
                                       int64_t num_rows,
                                       const Tensor& out) const {
  const Shape slots = {num_tokens, options.topk};
  expect_ids_here(input.topk_ids, slots);
  expect_here(input.topk_weights, slots, DType::kF32, "topk_weights");
  expect_here(input.x, {num_local(), num_rows, options.hidden}, options.in_dtype, "x");
  if (input.wait_us) {
    expect_here(input.wait_us, {group.size()}, DType::kI64, "wait_us");
    expect_writable(input.wait_us, "wait_us");
  }
  if (input.coding != LowLatencyCoding::kNone) {
    if (options.sum == LowLatencySum::kRanks) {
      throw Unsupported("logfmt rows with sums per rank, which are rounded where they leave");
    }
    expect_multiple_of(options.hidden, logfmt::kGroup, "hidden of a combine of logfmt rows");
    if (group.device().is_cuda()) {
      expect_multiple_of(static_cast<int64_t>(reinterpret_cast<uintptr_t>(input.x.raw())), 16,
                         "the address of x of a combine of logfmt rows");
    }
  }
  expect_here(out, {num_tokens, options.hidden}, options.in_dtype, "out");
  expect_writable(out, "out");
}

void LowLatency::State::expect_combined_once(bool& is_combined) {
  expect(!is_combined, "this dispatch was combined before, expected a dispatch for each combine");
  is_combined = true;
}

namespace {

void expect_low_latency(const Group& group,
                        const ExpertPlacement& placement,
                        const LowLatencyOptions& options) {
  expect_valid(options, group.size());
  expect_placed(placement, group);
  if (options.excludes_missing && group.topology().num_nodes() > 1) {
    throw Unsupported(fmt::format(
        "low latency that excludes missing ranks is for one node, these ranks are on {}",
        group.topology().num_nodes()));
  }
}

}  // namespace

int64_t low_latency_window_bytes(const Group& group,
                                 const ExpertPlacement& placement,
                                 const LowLatencyOptions& options) {
  expect_low_latency(group, placement, options);
  if (group.device().is_cpu()) {
    return LowLatencyLayout::make(options, group.size()).bytes();
  }
  int64_t most = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    most = std::max(most, placement.num_local(rank));
  }
  return cuda_low_latency_bytes(options, group.size(), most);
}

std::unique_ptr<LowLatency::State> make_low_latency(Group& group,
                                                    ExpertPlacement placement,
                                                    const LowLatencyOptions& options,
                                                    std::unique_ptr<Window> window) {
  if (window == nullptr) {  // otherwise it is made without a word to other ranks
    expect_same_options(group, placement, options);
  }
  expect_low_latency(group, placement, options);
  return group.device().is_cuda()
             ? make_cuda_low_latency(group, std::move(placement), options, std::move(window))
             : make_cpu_low_latency(group, std::move(placement), options, std::move(window));
}

LowLatency::LowLatency(Group& group, ExpertPlacement placement, const LowLatencyOptions& options)
    : state_(make_low_latency(group, std::move(placement), options, nullptr)) {}

LowLatency::LowLatency(std::unique_ptr<State> state) : state_(std::move(state)) {}

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
  expect_valid(options, num_ranks);
  comm::expect_count(num_experts, 1, "num_experts");
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

Tensor LowLatency::combine_buffer(const LowLatencyHandle& handle) {
  return state_->combine_buffer(handle);
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
  state_->learn_dead();
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
