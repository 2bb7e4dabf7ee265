// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LowLatency on CPUs: what the halves of its dispatch and combine share.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/low_latency/cpu/message_layout.h"
#include "comm/low_latency/transport.h"

namespace moebius {

// A received selection: where the row of the expert's output stands, and which selection it is of.
struct ReceivedSelection {
  int32_t source = 0, token = 0, slot = 0;
  int64_t row = 0;  // in [L * rows, H]
};

struct CpuLowLatency;

// The flags of returned rows hold the number of the dispatch, so they can tell one combine only.
struct LowLatencyHandleState final : LowLatencyCallHandle,
                                     std::enable_shared_from_this<LowLatencyHandleState> {
  const CpuLowLatency* owner = nullptr;
  int64_t call = 0;
  int bank = 0;
  std::vector<ReceivedSelection> selections;
  std::array<Tensor, 5> memory;  // the memory of the result, which may outlive the owner
};

struct CpuLowLatency final : LowLatency::State {
  CpuLowLatency(Group& g,
                ExpertPlacement p,
                const LowLatencyOptions& o,
                std::unique_ptr<Window> given);

  Pending<LowLatencyDispatchOutput> dispatch_async(const LowLatencyDispatchInput& input,
                                                   const Stream& stream) override;
  Pending<LowLatencyCombineOutput> combine_async(const Combine& call) override;
  Tensor combine_buffer(const LowLatencyHandle& handle) override;
  void set_dead(int rank, bool is_dead) override;
  TransportStatistics statistics() const override { return sent; }
  Tensor expert_statistics() const override { return expert_rows.clone(); }
  void reset_statistics() override;
  int64_t bytes() const override;

  LowLatencyLayout layout;
  std::unique_ptr<Window> window;
  int64_t calls = 0;
  // By bank: the call whose rows it holds, 0 for none, and the result of that call, while it lives.
  std::array<int64_t, 2> call_of_bank{};
  std::array<std::weak_ptr<LowLatencyHandleState>, 2> results;
  // The memory of results, by bank.  It is made when it is needed, and kept.
  struct Kept {
    Tensor x, x_scale;
    Tensor row_words;      // i32: tags, then tokens
    Tensor counts;         // i32 [L]
    Tensor ranges;         // i64 [L, R]
    Tensor expert_output;  // see combine_buffer()
  };
  std::array<Kept, 2> kept;
  int64_t num_given_up = 0;         // how often a rank was excluded
  int64_t num_given_up_agreed = 0;  // the same number when ranks last agreed on calls
  TransportStatistics sent;
  Tensor expert_rows;  // i64 [L]: rows received

  bool is_reachable(int rank) const { return window->peer(rank) != nullptr; }
  bool is_live_here(int rank) const { return !is_dead(rank) && is_reachable(rank); }

  // Call it before a dispatch.  Ranks may have failed in different calls, so after a rank was
  // excluded the live ones tell each other their last call, and go on from the latest of these.
  void agree_on_calls(std::string_view op);
  // Release, by Window::signal.  pairs with wait_signal on the peer: all stores before it are
  // visible there.
  void send_signal(Signal kind, int bank, int peer, int64_t call);
  // The same to, or from, every live rank of this node.
  void signal_all(Signal kind, int bank, int64_t call);
  // `wait_us`, if it is defined, gets what LowLatencyDispatchInput says of it.
  void await_all(
      Signal kind, int bank, int64_t call, std::string_view op, const Tensor& wait_us = {});
  // Acquire.  pairs with send_signal of the peer.  Returns the value that it saw, at least `call`.
  // `look`, if there is one, is called now and then while it waits.  Where missing ranks are
  // excluded, it also ends when the peer is; the value then says nothing.
  using Look = std::function<void()>;
  int64_t wait_signal(Signal kind,
                      int bank,
                      int peer,
                      int64_t call,
                      std::string_view op,
                      const Look& look = nullptr);
  // Excludes the rank that a failed wait has missed, and throws where none is to be excluded.
  void exclude_missing(const CommError& error);
  int64_t seen_signal(Signal kind, int bank, int peer) const;

  const LowLatencyHandleState& own_handle(const LowLatencyHandle& handle) const;
  static Tensor& at_least(Tensor& own, int64_t bytes);
};

}  // namespace moebius
