// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/low_latency.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/low_latency_state.h"

namespace moebius {

namespace {

LowLatencyLayout make_layout(const LowLatencyOptions& options, int num_ranks) {
  expect_ge(options.max_tokens, 1, "max_tokens");
  expect_ge(options.hidden, 1, "hidden");
  expect_ge(options.topk, 1, "topk");
  expect(options.in_dtype == DType::kBF16 || options.in_dtype == DType::kF16 ||
             options.in_dtype == DType::kF32,
         fmt::format("in_dtype is {}, expected bf16, f16 or f32", name(options.in_dtype)));
  return {options.max_tokens, options.topk, options.hidden, bits(options.in_dtype) / 8, num_ranks};
}

constexpr std::array<std::string_view, kNumSignals> kSignalNames = {"rows", "unpacked",
                                                                    "returned rows", "resumed"};

}  // namespace

LowLatency::State::State(Group& g, ExpertPlacement p, const LowLatencyOptions& o)
    : group(g),
      placement(std::move(p)),
      options(o),
      layout(make_layout(o, g.size())),
      window(g.make_window("low latency window", layout.bytes())),
      dead(static_cast<size_t>(g.size()), false),
      expert_rows(Tensor::zeros({placement.num_local(g.rank())}, DType::kI64)) {}

void LowLatency::State::send_signal(Signal kind, int bank, int peer, int64_t call) {
  auto* word =
      reinterpret_cast<int64_t*>(window->peer(peer) + layout.signal(kind, bank, group.rank()));
  std::atomic_ref(*word).store(call, std::memory_order_release);
}

int64_t LowLatency::State::wait_signal(
    Signal kind, int bank, int peer, int64_t call, std::string_view op) {
  auto* word = reinterpret_cast<int64_t*>(window->local() + layout.signal(kind, bank, peer));
  const auto seen = [word] { return std::atomic_ref(*word).load(std::memory_order_acquire); };
  group.wait_until(
      op, peer, [&] { return seen() >= call; },
      [&] {
        return fmt::format("expected \"{}\" of call {}, seen call {}",
                           kSignalNames[static_cast<size_t>(kind)], call, seen());
      });
  return seen();
}

void LowLatency::State::agree_on_calls(std::string_view op) {
  if (num_given_up == num_given_up_agreed) {
    return;
  }
  constexpr int kCallBits = 40;
  const int64_t earliest = num_given_up << kCallBits;
  const auto is_asked = [&](int rank) { return !is_dead(rank) && is_reachable(rank); };
  for (int rank = 0; rank < group.size(); ++rank) {
    if (is_asked(rank)) {
      send_signal(Signal::kResumed, 0, rank, earliest | calls);
    }
  }
  for (int rank = 0; rank < group.size(); ++rank) {
    if (is_asked(rank)) {
      const int64_t seen = wait_signal(Signal::kResumed, 0, rank, earliest, op);
      calls = std::max(calls, seen & ((int64_t{1} << kCallBits) - 1));
    }
  }
  call_of_bank = {};  // no peer is in a call any more, so no mailbox is in use
  num_given_up_agreed = num_given_up;
}

LowLatency::LowLatency(Group& group, ExpertPlacement placement, const LowLatencyOptions& options) {
  for (int64_t e = 0; e < placement.num_experts(); ++e) {
    expect(placement.rank_of(e) < group.size(),
           fmt::format("expert {} is placed on rank {}, but the group has {} ranks", e,
                       placement.rank_of(e), group.size()));
  }
  state_ = std::make_unique<State>(group, std::move(placement), options);
}

LowLatency::~LowLatency() = default;

int64_t LowLatency::size_hint(const LowLatencyOptions& options, int num_ranks, int64_t) {
  return make_layout(options, num_ranks).bytes();
}

LowLatencyDispatchOutput LowLatency::dispatch(const Tensor& x,
                                              const Tensor& topk_ids,
                                              LowLatencyCast cast,
                                              const Stream& stream,
                                              const Tensor& row_tags) {
  return dispatch_async(x, topk_ids, cast, stream, row_tags).finish();
}

void LowLatency::combine(const Tensor& x,
                         const Tensor& topk_ids,
                         const Tensor& topk_weights,
                         const LowLatencyHandle& handle,
                         const Tensor& out,
                         const Stream& stream) {
  combine_async(x, topk_ids, topk_weights, handle, out, stream).finish();
}

void LowLatency::set_dead(int rank, bool dead) {
  expect(rank >= 0 && rank < state_->group.size() && rank != state_->group.rank(),
         fmt::format("rank {} cannot be marked dead by rank {} of {}", rank, state_->group.rank(),
                     state_->group.size()));
  state_->group.set_dead(rank, dead);
  state_->num_given_up += dead && !state_->is_dead(rank) ? 1 : 0;
  state_->dead[static_cast<size_t>(rank)] = dead;
}

std::vector<bool> LowLatency::dead_ranks() const {
  return state_->dead;
}

TransportStatistics LowLatency::statistics() const {
  return state_->statistics;
}

Tensor LowLatency::expert_statistics() const {
  return state_->expert_rows.clone();
}

void LowLatency::reset_statistics() {
  state_->statistics = {};
  state_->expert_rows = Tensor::zeros(state_->expert_rows.shape(), DType::kI64);
}

}  // namespace moebius
