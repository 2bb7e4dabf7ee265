// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/low_latency/cpu/cpu_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace moebius {

namespace {

constexpr std::array<std::string_view, kNumSignals> kSignalNames = {
    "rows", "unpacked", "returned rows", "resumed", "weights"};

// Notes when the signal of each rank is seen first, while the caller waits for one after the other.
class WaitTimes {
 public:
  WaitTimes(CpuLowLatency& state, Signal kind, int bank, int64_t call, const Tensor& wait_us)
      : state_(state), kind_(kind), bank_(bank), call_(call), us_(wait_us) {
    for (int r = 0; us_ && r < state_.group.size(); ++r) {
      if (state_.is_live_here(r)) {
        awaited_.push_back(r);
      }
    }
  }
  void look() {
    if (awaited_.empty()) {
      return;
    }
    const auto now = std::chrono::steady_clock::now();
    const int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(now - begin_).count();
    std::erase_if(awaited_, [&](int r) {
      const bool is_here = state_.seen_signal(kind_, bank_, r) >= call_;
      if (is_here) {
        us_.data<int64_t>()[r] += us;
      }
      return is_here;
    });
  }

 private:
  CpuLowLatency& state_;
  Signal kind_;
  int bank_;
  int64_t call_;
  const Tensor& us_;
  std::vector<int> awaited_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

CpuLowLatency::CpuLowLatency(Group& g,
                             ExpertPlacement p,
                             const LowLatencyOptions& o,
                             std::unique_ptr<Window> given)
    : State(g, std::move(p), o),
      layout(LowLatencyLayout::make(o, g.size())),
      window(given ? std::move(given) : g.make_window("low latency window", layout.bytes())),
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

int64_t CpuLowLatency::seen_signal(Signal kind, int bank, int peer) const {
  auto* word = reinterpret_cast<int64_t*>(window->local() + layout.signal(kind, bank, peer));
  return std::atomic_ref(*word).load(std::memory_order_acquire);
}

int64_t CpuLowLatency::wait_signal(
    Signal kind, int bank, int peer, int64_t call, std::string_view op, const Look& look) {
  const auto seen = [&] { return seen_signal(kind, bank, peer); };
  const int64_t unit = kind == Signal::kReturned ? kReturnedUnit : 1;
  const auto wait = [&] {
    group.wait_until(
        op, peer,
        [&] {
          if (look) {
            look();
          }
          return seen() >= call;
        },
        [&] {
          return fmt::format("expected \"{}\" of call {}, seen call {}",
                             kSignalNames[static_cast<size_t>(kind)], call / unit, seen() / unit);
        });
  };
  while (!is_dead(peer)) {
    try {
      wait();
      break;
    } catch (const CommError& error) {
      exclude_missing(error);  // the peer may only have waited for that rank
    }
  }
  return seen();
}

void CpuLowLatency::exclude_missing(const CommError& error) {
  const int missing = error.peer();
  if (!options.excludes_missing || !error.peer_is_silent() || missing < 0 ||
      missing == group.rank()) {
    throw CommError(error);
  }
  group.set_dead(missing, true);
  dead[static_cast<size_t>(missing)] = true;
}

void CpuLowLatency::signal_all(Signal kind, int bank, int64_t call) {
  for (int r = 0; r < group.size(); ++r) {
    if (is_live_here(r)) {
      send_signal(kind, bank, r, call);
    }
  }
}

void CpuLowLatency::await_all(
    Signal kind, int bank, int64_t call, std::string_view op, const Tensor& wait_us) {
  WaitTimes times(*this, kind, bank, call, wait_us);
  for (int r = 0; r < group.size(); ++r) {
    if (is_live_here(r)) {
      times.look();
      wait_signal(kind, bank, r, call, op, [&] { times.look(); });
    }
  }
  times.look();
}

// Memory of at least `bytes`, which is made anew where `own` has fewer.  Results that are still
// alive keep what they have.
Tensor& CpuLowLatency::at_least(Tensor& own, int64_t bytes) {
  if (!own || own.nbytes() < bytes) {
    own = Tensor::empty({bytes}, DType::kU8);
  }
  return own;
}

Tensor CpuLowLatency::combine_buffer(const LowLatencyHandle& handle) {
  const LowLatencyHandleState& own = own_handle(handle);
  const Shape shape = {num_local(), own.num_rows, options.hidden};
  const Tensor& memory = at_least(kept[static_cast<size_t>(own.bank)].expert_output,
                                  num_local() * max_rows() * layout.row_bytes());
  return Tensor::share(std::make_shared<Tensor>(memory), memory.raw(), shape, options.in_dtype);
}

const LowLatencyHandleState& CpuLowLatency::own_handle(const LowLatencyHandle& handle) const {
  const auto* own = dynamic_cast<const LowLatencyHandleState*>(&handle);
  expect(own != nullptr && own->owner == this,
         "the handle does not come from a dispatch of this object");
  return *own;
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
  for (const Kept& bank : kept) {
    for (const Tensor* tensor : {&bank.x, &bank.x_scale, &bank.row_words, &bank.counts,
                                 &bank.ranges, &bank.expert_output}) {
      total += *tensor ? tensor->nbytes() : 0;
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
                                                        const LowLatencyOptions& options,
                                                        std::unique_ptr<Window> window) {
  return std::make_unique<CpuLowLatency>(group, std::move(placement), options, std::move(window));
}

}  // namespace moebius
