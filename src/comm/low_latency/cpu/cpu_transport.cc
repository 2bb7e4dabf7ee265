// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/low_latency/cpu/cpu_transport.h"

#include <fmt/format.h>

#include <algorithm>

namespace moebius {

namespace {

constexpr std::array<std::string_view, kNumSignals> kSignalNames = {
    "rows", "unpacked", "returned rows", "resumed", "weights"};

}  // namespace

CpuLowLatency::CpuLowLatency(Group& g, ExpertPlacement p, const LowLatencyOptions& o)
    : State(g, std::move(p), o),
      layout(LowLatencyLayout::make(o, g.size())),
      window(g.make_window("low latency window", layout.bytes())),
      expert_rows(Tensor::zeros({num_local()}, DType::kI64)) {
  if (layout.sums_ranks && g.topology().num_nodes() > 1) {
    throw Unsupported(
        fmt::format("low latency with sums per rank: ranks on {} nodes, they must "
                    "share one",
                    g.topology().num_nodes()));
  }
}

void CpuLowLatency::send_signal(Signal kind, int bank, int peer, int64_t call) {
  window->signal(peer, layout.signal(kind, bank, group.rank()), call);
}

int64_t CpuLowLatency::wait_signal(
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

void CpuLowLatency::signal_all(Signal kind, int bank, int64_t call) {
  for (int r = 0; r < group.size(); ++r) {
    if (is_live_here(r)) {
      send_signal(kind, bank, r, call);
    }
  }
}

void CpuLowLatency::await_all(Signal kind, int bank, int64_t call, std::string_view op) {
  for (int r = 0; r < group.size(); ++r) {
    if (is_live_here(r)) {
      wait_signal(kind, bank, r, call, op);
    }
  }
}

void CpuLowLatency::agree_on_calls(std::string_view op) {
  if (num_given_up == num_given_up_agreed) {
    return;
  }
  constexpr int kCallBits = 40;
  const int64_t earliest = num_given_up << kCallBits;
  signal_all(Signal::kResumed, 0, earliest | calls);
  for (int rank = 0; rank < group.size(); ++rank) {
    if (is_live_here(rank)) {
      const int64_t seen = wait_signal(Signal::kResumed, 0, rank, earliest, op);
      calls = std::max(calls, seen & ((int64_t{1} << kCallBits) - 1));
    }
  }
  call_of_bank = {};  // no peer is still in a call, so no mailbox is in use
  num_given_up_agreed = num_given_up;
}

void CpuLowLatency::set_dead(int rank, bool is_dead_now) {
  group.set_dead(rank, is_dead_now);
  num_given_up += is_dead_now && !is_dead(rank) ? 1 : 0;
  dead[static_cast<size_t>(rank)] = is_dead_now;
}

int64_t CpuLowLatency::bytes() const {
  int64_t total = window->bytes() + expert_rows.nbytes();
  for (const auto* tensors : {&x, &x_scale, &row_tags_bank}) {
    for (const Tensor& tensor : *tensors) {
      total += tensor ? tensor.nbytes() : 0;
    }
  }
  return total;
}

void CpuLowLatency::reset_statistics() {
  sent = {};
  expert_rows = Tensor::zeros(expert_rows.shape(), DType::kI64);
}

std::unique_ptr<LowLatency::State> make_cpu_low_latency(Group& group,
                                                        ExpertPlacement placement,
                                                        const LowLatencyOptions& options) {
  return std::make_unique<CpuLowLatency>(group, std::move(placement), options);
}

}  // namespace moebius
