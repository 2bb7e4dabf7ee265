// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low-latency combine.  Send half: every expert row goes back to its token's rank, to the place of
// its slot there; then the signal "returned rows".  Receive half: when the rows of all live ranks
// are back, slots are weighted and summed in order, in f32, and rounded once.
#include <fmt/format.h>

#include <cstring>

#include "comm/low_latency_cpu.h"
#include "core/parallel.h"
#include "core/row_sums.h"

namespace moebius {

namespace {

constexpr std::string_view kOp = "low latency combine";

// A row between nodes: {token i32, slot i32, 8 bytes of padding, row}.
constexpr int64_t kRowHeader = 16;

struct Transfer {
  CpuLowLatency& state;
  Stream stream;
  std::shared_ptr<const LowLatencyHandleState> handle;  // keeps the bank until the sums are made
  Tensor topk_ids;
  Tensor topk_weights;
  Tensor out;
  std::vector<std::vector<std::byte>> outgoing;
  std::vector<std::vector<std::byte>> incoming;
  std::unique_ptr<Exchange> exchange;
  bool arrived = false;

  void send(const Tensor& x);
  void wait();
  void reduce();

 private:
  void post_messages(const Tensor& x);
  bool contributes(int32_t id) const {
    return id >= 0 && !state.is_dead(state.placement.rank_of(id));
  }
};

void Transfer::send(const Tensor& x) {
  const LowLatencyLayout& layout = state.layout;
  const auto row_size = static_cast<size_t>(layout.row_bytes());
  const auto& selections = handle->selections;
  parallel_for(stream, static_cast<int64_t>(selections.size()), 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const ReceivedSelection& s = selections[static_cast<size_t>(i)];
      if (state.is_reachable(s.source) && !state.is_dead(s.source)) {
        std::memcpy(state.window->peer(s.source) + layout.returned(handle->bank, s.token, s.slot),
                    x.bytes() + static_cast<size_t>(s.row) * row_size, row_size);
      }
    }
  });
  std::vector<int64_t> rows(static_cast<size_t>(state.group.size()), 0);
  for (const ReceivedSelection& s : selections) {
    ++rows[static_cast<size_t>(s.source)];
  }
  for (int r = 0; r < state.group.size(); ++r) {
    if (!state.is_dead(r) && state.is_reachable(r)) {
      state.group.count_traffic(r, rows[static_cast<size_t>(r)] * layout.row_bytes());
      state.send_signal(Signal::kReturned, handle->bank, r, handle->call);
    }
  }
  if (state.group.topology().num_nodes() > 1) {
    post_messages(x);
  }
}

void Transfer::post_messages(const Tensor& x) {
  const LowLatencyLayout& layout = state.layout;
  const auto num_ranks = static_cast<size_t>(state.group.size());
  const auto row_size = static_cast<size_t>(layout.row_bytes());
  const size_t message_size = static_cast<size_t>(kRowHeader) + row_size;
  outgoing.resize(num_ranks);
  incoming.resize(num_ranks);
  for (const ReceivedSelection& s : handle->selections) {
    if (state.is_reachable(s.source) || state.is_dead(s.source)) {
      continue;
    }
    auto& block = outgoing[static_cast<size_t>(s.source)];
    const size_t at = block.size();
    block.resize(at + message_size);
    std::memcpy(block.data() + at, &s.token, sizeof(s.token));
    std::memcpy(block.data() + at + sizeof(s.token), &s.slot, sizeof(s.slot));
    std::memcpy(block.data() + at + kRowHeader, x.bytes() + static_cast<size_t>(s.row) * row_size,
                row_size);
  }
  const auto* ids = topk_ids.data<int32_t>();
  for (int64_t i = 0; i < topk_ids.numel(); ++i) {
    if (contributes(ids[i]) && !state.is_reachable(state.placement.rank_of(ids[i]))) {
      auto& block = incoming[static_cast<size_t>(state.placement.rank_of(ids[i]))];
      block.resize(block.size() + message_size);
    }
  }
  std::vector<SendBlock> sends;
  std::vector<RecvBlock> recvs;
  for (int r = 0; r < state.group.size(); ++r) {
    if (!state.is_reachable(r) && !state.is_dead(r)) {
      auto& sent = outgoing[static_cast<size_t>(r)];
      auto& received = incoming[static_cast<size_t>(r)];
      sends.push_back({r, sent.data(), static_cast<int64_t>(sent.size())});
      recvs.push_back({r, received.data(), static_cast<int64_t>(received.size())});
    }
  }
  exchange = state.group.start_exchange(kOp, sends, recvs);
}

void Transfer::wait() {
  if (arrived) {
    return;
  }
  for (int r = 0; r < state.group.size(); ++r) {
    if (!state.is_dead(r) && state.is_reachable(r)) {
      state.wait_signal(Signal::kReturned, handle->bank, r, handle->call, kOp);
    }
  }
  if (exchange) {
    exchange->wait();
  }
  arrived = true;
}

void Transfer::reduce() {
  wait();
  const LowLatencyLayout& layout = state.layout;
  const auto row_size = static_cast<size_t>(layout.row_bytes());
  for (const auto& block : incoming) {
    for (size_t at = 0; at < block.size(); at += static_cast<size_t>(kRowHeader) + row_size) {
      int32_t token = 0;
      int32_t slot = 0;
      std::memcpy(&token, block.data() + at, sizeof(token));
      std::memcpy(&slot, block.data() + at + sizeof(token), sizeof(slot));
      std::memcpy(state.window->local() + layout.returned(handle->bank, token, slot),
                  block.data() + at + kRowHeader, row_size);
    }
  }
  const auto* ids = topk_ids.data<int32_t>();
  const auto* weights = topk_weights.data<float>();
  parallel_for(stream, topk_ids.dim(0), 4, [&](int64_t begin, int64_t end) {
    std::vector<SumTerm> rows;
    for (int64_t t = begin; t < end; ++t) {
      rows.clear();
      for (int64_t k = 0; k < layout.topk; ++k) {
        if (contributes(ids[t * layout.topk + k])) {
          rows.push_back({state.window->local() + layout.returned(handle->bank, t, k),
                          weights[t * layout.topk + k]});
        }
      }
      sum_rows({.dtype = out.dtype(),
                .rounding = SumRounding::kSum,
                .terms = rows.data(),
                .num_terms = static_cast<int64_t>(rows.size()),
                .n = layout.hidden,
                .out = out.bytes() + t * layout.row_bytes(),
                .past_caches = false});
    }
  });
}

}  // namespace

Pending<void> CpuLowLatency::combine_async(const Tensor& rows,
                                           const Tensor& topk_ids,
                                           const Tensor& topk_weights,
                                           const LowLatencyHandle& handle,
                                           const Tensor& out,
                                           const Stream& stream) {
  const auto* own = dynamic_cast<const LowLatencyHandleState*>(&handle);
  expect(own != nullptr && own->owner == this,
         "the handle does not come from a dispatch of this object");
  expect_combine(rows, topk_ids, topk_weights, own->num_tokens, out);
  auto transfer = std::make_shared<Transfer>(
      Transfer{*this, stream, own->shared_from_this(), topk_ids, topk_weights, out, {}, {}, {}});
  transfer->send(rows);
  return {[transfer] { transfer->wait(); }, [transfer] { transfer->reduce(); }};
}

}  // namespace moebius
