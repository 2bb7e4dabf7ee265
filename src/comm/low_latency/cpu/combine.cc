// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low-latency combine on CPUs.
//
// Send half: every expert row goes back to its token's rank, to the place of its slot there; then
// comes the signal "returned rows".  Receive half: when the rows of all live ranks are back, slots
// are weighted and summed in order, in f32, and rounded once.
// Rows of a logfmt coding are coded where they leave, and decoded where they are summed.
//
// With sums per rank, the weights first go to the experts' ranks, with the signal "weights".  One
// row per token then goes back, to the place of the token's first slot here, and the receive half
// sums these.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "comm/low_latency/cpu/cpu_transport.h"
#include "comm/low_latency/logfmt.h"
#include "core/ids.h"
#include "core/parallel.h"
#include "core/row_sums.h"

namespace moebius {

namespace {

constexpr std::string_view kOp = "low latency combine";

// A row that crosses between nodes is {token i32, slot i32, 8 bytes of padding, row}.
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
  Tensor wait_us;
  LowLatencyCoding coding = LowLatencyCoding::kNone;

  void send(const Tensor& x);
  void wait();
  LowLatencyCombineOutput reduce();

 private:
  void send_rows(const Tensor& x);
  void exchange_weights();
  void send_sums(const Tensor& x);
  void signal_returned(const std::vector<int64_t>& rows);
  void post_messages(const Tensor& x);
  // Finds the places of a token's rows, in the order of their sum, and their weights.
  void find_terms(int64_t token, std::vector<SumTerm>& terms) const;
  bool is_coded() const { return coding != LowLatencyCoding::kNone; }
  // The bytes of a row on its way.
  int64_t returned_bytes() const {
    return is_coded() ? logfmt::row_bytes(state.layout.hidden) : state.layout.row_bytes();
  }
  void put_row(const std::byte* row, std::byte* to) const;
  void sum_coded(const std::vector<SumTerm>& terms,
                 std::vector<float>& scratch,
                 int64_t token) const;
  void expect_same_coding() const;
  bool contributes(int32_t id) const {
    return id >= 0 && !state.is_dead(state.placement.rank_of(id));
  }
};

void Transfer::send(const Tensor& x) {
  if (state.layout.sums_ranks) {
    exchange_weights();
    send_sums(x);
  } else {
    send_rows(x);
  }
}

void Transfer::put_row(const std::byte* row, std::byte* to) const {
  if (is_coded()) {
    logfmt::encode_row(state.options.in_dtype, row, state.layout.hidden, to);
  } else {
    std::memcpy(to, row, static_cast<size_t>(state.layout.row_bytes()));
  }
}

void Transfer::send_rows(const Tensor& x) {
  const LowLatencyLayout& layout = state.layout;
  const auto& selections = handle->selections;
  parallel_for(stream, static_cast<int64_t>(selections.size()), 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const ReceivedSelection& s = selections[static_cast<size_t>(i)];
      if (state.is_live_here(s.source)) {
        put_row(x.bytes() + s.row * layout.row_bytes(),
                state.window->peer(s.source) + layout.returned(handle->bank, s.token, s.slot));
      }
    }
  });
  std::vector<int64_t> rows(static_cast<size_t>(state.group.size()), 0);
  for (const ReceivedSelection& s : selections) {
    ++rows[static_cast<size_t>(s.source)];
  }
  signal_returned(rows);
  if (state.group.topology().num_nodes() > 1) {
    post_messages(x);
  }
}

void Transfer::signal_returned(const std::vector<int64_t>& rows) {
  for (int r = 0; r < state.group.size(); ++r) {
    if (state.is_live_here(r)) {
      state.group.count_traffic(r, rows[static_cast<size_t>(r)] * returned_bytes());
    }
  }
  state.signal_all(Signal::kReturned, handle->bank,
                   kReturnedUnit * handle->call + static_cast<int64_t>(coding));
}

void Transfer::exchange_weights() {
  const LowLatencyLayout& layout = state.layout;
  for (int r = 0; r < state.group.size(); ++r) {
    if (!state.is_dead(r)) {
      std::copy_n(topk_weights.bytes(), topk_weights.nbytes(),
                  state.window->peer(r) + layout.weights(handle->bank, state.group.rank()));
      state.group.count_traffic(r, topk_weights.nbytes());
    }
  }
  state.signal_all(Signal::kWeights, handle->bank, handle->call);
  state.await_all(Signal::kWeights, handle->bank, handle->call, kOp);
}

void Transfer::send_sums(const Tensor& x) {
  const LowLatencyLayout& layout = state.layout;
  const auto& selections = handle->selections;
  // The selections of a token follow each other.
  std::vector<size_t> first;
  std::vector<int64_t> rows(static_cast<size_t>(state.group.size()), 0);
  for (size_t i = 0; i < selections.size(); ++i) {
    const ReceivedSelection& s = selections[i];
    if (i == 0 || s.source != selections[i - 1].source || s.token != selections[i - 1].token) {
      first.push_back(i);
      ++rows[static_cast<size_t>(s.source)];
    }
  }
  first.push_back(selections.size());
  parallel_for(stream, static_cast<int64_t>(first.size()) - 1, 4, [&](int64_t begin, int64_t end) {
    std::vector<SumTerm> terms;
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const ReceivedSelection& place = selections[first[i]];
      if (state.is_dead(place.source)) {
        continue;
      }
      const auto* weights = reinterpret_cast<const float*>(
          state.window->local() + layout.weights(handle->bank, place.source));
      terms.clear();
      for (size_t j = first[i]; j < first[i + 1]; ++j) {
        const ReceivedSelection& s = selections[j];
        terms.push_back(
            {x.bytes() + s.row * layout.row_bytes(), weights[s.token * layout.topk + s.slot]});
      }
      sum_rows({.dtype = x.dtype(),
                .rounding = SumRounding::kSum,
                .terms = terms.data(),
                .num_terms = static_cast<int64_t>(terms.size()),
                .n = layout.hidden,
                .out = state.window->peer(place.source) +
                       layout.returned(handle->bank, place.token, place.slot),
                .past_caches = false});
    }
  });
  signal_returned(rows);
}

void Transfer::post_messages(const Tensor& x) {
  const LowLatencyLayout& layout = state.layout;
  const auto num_ranks = static_cast<size_t>(state.group.size());
  const size_t message_size = static_cast<size_t>(kRowHeader + returned_bytes());
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
    put_row(x.bytes() + s.row * layout.row_bytes(), block.data() + at + kRowHeader);
  }
  const Ids ids = Ids::of(topk_ids);
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
  state.await_all(Signal::kReturned, handle->bank, kReturnedUnit * handle->call, kOp, wait_us);
  if (exchange) {
    exchange->wait();
  }
  expect_same_coding();
}

// Every rank finds that one differs.
void Transfer::expect_same_coding() const {
  for (int r = 0; r < state.group.size(); ++r) {
    if (!state.is_live_here(r)) {
      continue;
    }
    const int64_t theirs = state.seen_signal(Signal::kReturned, handle->bank, r) % kReturnedUnit;
    if (theirs != static_cast<int64_t>(coding)) {
      const auto text = [](bool is_logfmt) { return is_logfmt ? "logfmt rows" : "plain rows"; };
      throw InvalidArgument(fmt::format("{}: rank {} returns {}, rank {} expects {}", kOp, r,
                                        text(theirs != 0), state.group.rank(), text(is_coded())));
    }
  }
}

void Transfer::sum_coded(const std::vector<SumTerm>& terms,
                         std::vector<float>& scratch,
                         int64_t token) const {
  const int64_t hidden = state.layout.hidden;
  scratch.resize(static_cast<size_t>(2 * hidden));
  float* sum = scratch.data();
  float* row = scratch.data() + hidden;
  std::fill_n(sum, hidden, 0.0f);
  for (const SumTerm& term : terms) {
    logfmt::decode_row(static_cast<const std::byte*>(term.row), hidden, row);
    for (int64_t h = 0; h < hidden; ++h) {
      sum[h] += term.weight * row[h];
    }
  }
  const Tensor to = out[token];
  for (int64_t h = 0; h < hidden; ++h) {
    set_float(to, h, sum[h]);
  }
}

void Transfer::find_terms(int64_t token, std::vector<SumTerm>& terms) const {
  const LowLatencyLayout& layout = state.layout;
  const Ids ids = Ids::of(topk_ids).from(token * layout.topk);
  const float* weights = topk_weights.data<float>() + token * layout.topk;
  const auto place = [&](int64_t k) {
    return state.window->local() + layout.returned(handle->bank, token, k);
  };
  terms.clear();
  if (!layout.sums_ranks) {
    for (int64_t k = 0; k < layout.topk; ++k) {
      if (contributes(ids[k])) {
        terms.push_back({place(k), weights[k]});
      }
    }
    return;
  }
  for (int r = 0; r < state.group.size(); ++r) {
    for (int64_t k = 0; k < layout.topk; ++k) {
      if (contributes(ids[k]) && state.placement.rank_of(ids[k]) == r) {
        terms.push_back({place(k), 1.0f});
        break;
      }
    }
  }
}

LowLatencyCombineOutput Transfer::reduce() {
  const LowLatencyLayout& layout = state.layout;
  const auto row_size = static_cast<size_t>(returned_bytes());
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
  parallel_for(stream, topk_ids.dim(0), 4, [&](int64_t begin, int64_t end) {
    std::vector<SumTerm> rows;
    std::vector<float> scratch;
    for (int64_t t = begin; t < end; ++t) {
      find_terms(t, rows);
      if (is_coded()) {
        sum_coded(rows, scratch, t);
        continue;
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
  return {out, stream.record()};
}

}  // namespace

Pending<LowLatencyCombineOutput> CpuLowLatency::combine_async(const Combine& call) {
  const auto& [input, handle, stream, out] = call;
  const LowLatencyHandleState& own = own_handle(handle);
  expect_combine(input, own.num_tokens, own.num_rows, out);
  expect_combined_once(own.is_combined);
  stream.wait(input.previous);
  auto transfer = std::make_shared<Transfer>(Transfer{*this,
                                                      stream,
                                                      own.shared_from_this(),
                                                      input.topk_ids,
                                                      input.topk_weights,
                                                      out,
                                                      {},
                                                      {},
                                                      {},
                                                      input.wait_us,
                                                      input.coding});
  transfer->send(input.x);
  return in_halves([transfer] { transfer->wait(); }, [transfer] { return transfer->reduce(); });
}

}  // namespace moebius
