// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low-latency dispatch on CPUs.  Send half: each token's row goes once to every rank with one of
// its experts, into this rank's private mailbox there; then comes the signal "rows".  Receive half:
// when the rows of all live ranks are there, they are copied to the experts' rows; then comes the
// signal "unpacked".

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/low_latency/cast.h"
#include "comm/low_latency/cpu/cpu_transport.h"
#include "comm/routing/route.h"
#include "core/parallel.h"

namespace moebius {

namespace {

constexpr std::string_view kOp = "low latency dispatch";

struct Transfer {
  CpuLowLatency& state;
  Stream stream;
  LowLatencyCast cast;
  LowLatencyInto into;
  std::shared_ptr<LowLatencyHandleState> handle;
  std::vector<std::vector<std::byte>> outgoing;  // mailboxes for ranks that cannot be stored to
  std::unique_ptr<Exchange> exchange;
  bool unpacked = false;

  Transfer(CpuLowLatency& s,
           const Stream& on,
           const LowLatencyDispatchInput& input,
           std::shared_ptr<LowLatencyHandleState> made)
      : state(s), stream(on), cast(input.cast), into(input.into), handle(std::move(made)) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  // A call that has failed or was dropped needs its rows no more, so the mailboxes may be reused.
  ~Transfer() { release_mailboxes(); }

  void send(const Tensor& x, const Tensor& topk_ids, const Tensor& row_tags);
  void wait();
  LowLatencyDispatchOutput unpack();

 private:
  void release_mailboxes();
  std::byte* mailbox_at(int rank);
  void write_messages(const Tensor& x,
                      const Tensor& topk_ids,
                      const Tensor& row_tags,
                      const Route& route);
};

std::byte* Transfer::mailbox_at(int rank) {
  if (state.is_reachable(rank)) {
    return state.window->peer(rank) + state.layout.mailbox(handle->bank, state.group.rank());
  }
  return outgoing[static_cast<size_t>(rank)].data();
}

void Transfer::send(const Tensor& x, const Tensor& topk_ids, const Tensor& row_tags) {
  const LowLatencyLayout& layout = state.layout;
  const int num_ranks = state.group.size();
  const int bank = handle->bank;
  std::vector<int> rank_of;
  for (int64_t e = 0; e < state.placement.num_experts(); ++e) {
    rank_of.push_back(state.placement.rank_of(e));
  }
  const Route route =
      make_route(Ids::of(topk_ids), topk_ids.dim(0), layout.topk, rank_of, 0, num_ranks);

  const int64_t previous = state.call_of_bank[static_cast<size_t>(bank)];
  outgoing.resize(static_cast<size_t>(num_ranks));
  std::vector<SendBlock> sends;
  std::vector<RecvBlock> recvs;
  for (int r = 0; r < num_ranks; ++r) {
    if (state.is_dead(r)) {
      continue;
    }
    if (state.is_reachable(r)) {
      // The peer has unpacked what this bank's mailbox held before.
      state.wait_signal(Signal::kUnpacked, bank, r, previous, kOp);
    } else {
      auto& block = outgoing[static_cast<size_t>(r)];
      block.resize(static_cast<size_t>(layout.mailbox_bytes()));
      sends.push_back({r, block.data(), layout.mailbox_bytes()});
      recvs.push_back({r, state.window->local() + layout.mailbox(bank, r), layout.mailbox_bytes()});
    }
  }
  write_messages(x, topk_ids, row_tags, route);
  state.sent.selections += route.selections;
  for (int r = 0; r < num_ranks; ++r) {
    if (state.is_dead(r)) {
      continue;
    }
    const int64_t copies = route.copies[static_cast<size_t>(r)];
    std::memcpy(mailbox_at(r), &copies, sizeof(copies));
    state.sent.copies += copies;
    state.sent.node_copies += state.group.topology().same_node(r) ? 0 : copies;
    if (state.is_reachable(r)) {
      state.group.count_traffic(r, copies * layout.message_bytes());
      state.send_signal(Signal::kRows, bank, r, handle->call);
    }
  }
  if (state.group.topology().num_nodes() > 1) {
    exchange = state.group.start_exchange(kOp, sends, recvs);
  }
  state.call_of_bank[static_cast<size_t>(bank)] = handle->call;
}

void Transfer::write_messages(const Tensor& x,
                              const Tensor& topk_ids,
                              const Tensor& row_tags,
                              const Route& route) {
  const LowLatencyLayout& layout = state.layout;
  const Ids ids = Ids::of(topk_ids);
  parallel_for(stream, route.num_tokens, 1, [&](int64_t t, int64_t) {
    // The message is made and cast once, then copied to each rank.
    std::vector<std::byte> message(static_cast<size_t>(layout.message_bytes()));
    auto* words = reinterpret_cast<int32_t*>(message.data());
    words[0] = static_cast<int32_t>(t);
    words[LowLatencyLayout::kTagWord] = row_tags ? row_tags.data<int32_t>()[t] : -1;
    for (int64_t k = 0; k < layout.topk; ++k) {
      words[LowLatencyLayout::kFirstIdWord + k] = ids[t * layout.topk + k];
    }
    std::byte* payload = message.data() + layout.row_offset();
    const std::byte* row = x.bytes() + t * layout.row_bytes();
    if (cast == LowLatencyCast::kNone) {
      std::memcpy(payload, row, static_cast<size_t>(layout.row_bytes()));
    } else {
      cast_row(x.dtype(), row, layout.hidden, cast, reinterpret_cast<uint8_t*>(payload),
               reinterpret_cast<float*>(payload + layout.hidden));
    }
    for (int r = 0; r < route.num_destinations; ++r) {
      const int32_t index = route.at(t, r);
      if (index >= 0 && !state.is_dead(r)) {
        std::memcpy(mailbox_at(r) + LowLatencyLayout::kHeaderBytes + index * layout.message_bytes(),
                    message.data(), message.size());
      }
    }
  });
}

void Transfer::wait() {
  state.await_all(Signal::kRows, handle->bank, handle->call, kOp);
  if (exchange) {
    exchange->wait();
  }
}

void Transfer::release_mailboxes() {
  if (!std::exchange(unpacked, true)) {
    state.signal_all(Signal::kUnpacked, handle->bank, handle->call);
  }
}

LowLatencyDispatchOutput Transfer::unpack() {
  const LowLatencyLayout& layout = state.layout;
  const int bank = handle->bank;
  const int64_t num_local = state.num_local();
  const int64_t max_rows = state.max_rows();
  const bool is_cast = cast != LowLatencyCast::kNone;

  // The two banks' outputs are made once and kept, so that a call allocates none.  Tensors on a
  // bank keep the handle, and so the bank and the memory, alive.
  const std::shared_ptr<LowLatencyHandleState> keep = handle;
  const auto kept = [&](Tensor& storage, int64_t bytes, const Shape& shape, DType as) {
    if (!storage) {
      storage = Tensor::empty({bytes}, DType::kU8);
    }
    return Tensor::share(keep, storage.raw(), shape, as);
  };
  LowLatencyDispatchOutput output;
  output.expert_num_tokens =
      into.expert_num_tokens ? into.expert_num_tokens
                             : kept(state.expert_counts[static_cast<size_t>(bank)],
                                    row_bytes(DType::kI32, num_local), {num_local}, DType::kI32);
  auto* counts = output.expert_num_tokens.data<int32_t>();
  std::fill_n(counts, num_local, 0);

  // The rows of an expert end up in order of (source rank, source token), since messages in a
  // mailbox are in order of tokens.
  std::vector<const std::byte*> messages;
  for (int source = 0; source < state.group.size(); ++source) {
    if (state.is_dead(source)) {
      continue;
    }
    const std::byte* mailbox = state.window->local() + layout.mailbox(bank, source);
    int64_t copies = 0;
    std::memcpy(&copies, mailbox, sizeof(copies));
    for (int64_t i = 0; i < copies; ++i) {
      const std::byte* message =
          mailbox + LowLatencyLayout::kHeaderBytes + i * layout.message_bytes();
      const auto* words = reinterpret_cast<const int32_t*>(message);
      for (int64_t k = 0; k < layout.topk; ++k) {
        const int32_t id = words[LowLatencyLayout::kFirstIdWord + k];
        if (id < 0 || state.placement.rank_of(id) != state.group.rank()) {
          continue;
        }
        const int64_t local = state.placement.local_index(id);
        handle->selections.push_back(
            {source, words[0], static_cast<int32_t>(k), local * max_rows + counts[local]++});
        messages.push_back(message);
      }
    }
  }

  const DType dtype = is_cast ? DType::kF8E4M3 : state.options.in_dtype;
  const int64_t groups = layout.hidden / LowLatencyLayout::kScaleGroup;
  const auto at = static_cast<size_t>(bank);
  output.x = into.x ? into.x
                    : kept(state.x[at], num_local * max_rows * layout.row_bytes(),
                           {num_local, max_rows, layout.hidden}, dtype);
  if (is_cast) {
    const Shape shape = {num_local, max_rows, groups};
    output.x_scale = into.x_scale ? into.x_scale
                                  : kept(state.x_scale[at], row_bytes(DType::kF32, shape.numel()),
                                         shape, DType::kF32);
  }
  const Shape slots = {num_local, max_rows};
  output.row_tags = into.row_tags ? into.row_tags
                                  : kept(state.row_tags_bank[at],
                                         row_bytes(DType::kI32, slots.numel()), slots, DType::kI32);
  handle->memory = {state.x[at], state.x_scale[at], state.row_tags_bank[at],
                    state.expert_counts[at]};
  const auto row_size = static_cast<size_t>(is_cast ? layout.hidden : layout.row_bytes());
  const auto scale_size = static_cast<size_t>(groups) * sizeof(float);
  parallel_for(stream, static_cast<int64_t>(messages.size()), 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto row = static_cast<size_t>(handle->selections[static_cast<size_t>(i)].row);
      const std::byte* message = messages[static_cast<size_t>(i)];
      output.row_tags.data<int32_t>()[row] =
          reinterpret_cast<const int32_t*>(message)[LowLatencyLayout::kTagWord];
      const std::byte* payload = message + layout.row_offset();
      std::memcpy(output.x.bytes() + row * row_size, payload, row_size);
      if (is_cast) {
        std::memcpy(output.x_scale.bytes() + row * scale_size, payload + layout.hidden, scale_size);
      }
    }
  });
  release_mailboxes();
  for (int64_t l = 0; l < num_local; ++l) {
    state.expert_rows.data<int64_t>()[l] += counts[l];
  }
  output.handle = handle;
  output.event = stream.record();
  return output;
}

}  // namespace

Pending<LowLatencyDispatchOutput> CpuLowLatency::dispatch_async(
    const LowLatencyDispatchInput& input, const Stream& stream) {
  expect_dispatch(input);
  stream.wait(input.previous);
  const Tensor& topk_ids = input.topk_ids;
  expect_ids(topk_ids, placement.num_experts());
  if (topk_ids.numel() > options.max_tokens) {  // else any expert has room for all of them
    std::vector<int64_t> num_selections(static_cast<size_t>(placement.num_experts()), 0);
    const Ids ids = Ids::of(topk_ids);
    const int64_t num_ids = topk_ids.numel();
    for (int64_t i = 0; i < num_ids; ++i) {
      if (ids[i] >= 0) {
        ++num_selections[static_cast<size_t>(ids[i])];
      }
    }
    for (size_t e = 0; e < num_selections.size(); ++e) {
      expect_room(static_cast<int64_t>(e), num_selections[e]);
    }
  }
  agree_on_calls(kOp);
  const int64_t call = calls + 1;
  const auto bank = static_cast<size_t>(call % 2);
  if (!results[bank].expired()) {
    throw_third_result(call);
  }
  calls = call;

  auto handle = std::make_shared<LowLatencyHandleState>();
  handle->owner = this;
  handle->call = call;
  handle->bank = static_cast<int>(bank);
  handle->num_tokens = topk_ids.dim(0);
  results[bank] = handle;
  auto transfer = std::make_shared<Transfer>(*this, stream, input, handle);
  transfer->send(input.x, topk_ids, input.row_tags);
  return in_halves([transfer] { transfer->wait(); }, [transfer] { return transfer->unpack(); });
}

}  // namespace moebius
