// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low-latency dispatch on CPUs.  Send half: each token's row goes once to every rank with one of
// its experts, into this rank's private mailbox there; then comes the signal "rows".  Receive half:
// when the rows of all live ranks are there, they are copied to the experts' rows; then comes the
// signal "unpacked".

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/low_latency/cast.h"
#include "comm/low_latency/cpu/cpu_transport.h"
#include "comm/routing/route.h"
#include "core/parallel.h"
#include "quant/impls.h"

namespace moebius {

namespace {

constexpr std::string_view kOp = "low latency dispatch";

struct Transfer {
  CpuLowLatency& state;
  Stream stream;
  LowLatencyDispatchInput input;
  LowLatencyRow row;
  int64_t room;
  std::shared_ptr<LowLatencyHandleState> handle;
  std::vector<std::vector<std::byte>> outgoing;  // mailboxes for ranks that cannot be stored to
  std::unique_ptr<Exchange> exchange;
  bool unpacked = false;

  Transfer(CpuLowLatency& s,
           const Stream& on,
           const LowLatencyDispatchInput& given,
           std::shared_ptr<LowLatencyHandleState> made)
      : state(s),
        stream(on),
        input(given),
        row(s.row_of(given)),
        room(s.room_of(given)),
        handle(std::move(made)) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  // A call that has failed or was dropped needs its rows no more, so the mailboxes may be reused.
  ~Transfer() { release_mailboxes(); }

  void send();
  void wait();
  LowLatencyDispatchOutput unpack();

 private:
  void release_mailboxes();
  std::byte* mailbox_at(int rank);
  void write_messages(const Route& route);
  void write_message(const quant::RowKernels& kernels, int64_t token, std::byte* to) const;
  MailboxHeader header_of(int source) const;
  void expect_same_rows() const;
  // Finds the rows of received selections, and their messages.
  std::vector<const std::byte*> find_rows(const LowLatencyDispatchOutput& output);
  LowLatencyDispatchOutput make_outputs();
  void copy_scales(const std::byte* from, int64_t row_index, const Tensor& to) const;
};

std::byte* Transfer::mailbox_at(int rank) {
  if (state.is_reachable(rank)) {
    return state.window->peer(rank) + state.layout.mailbox(handle->bank, state.group.rank());
  }
  return outgoing[static_cast<size_t>(rank)].data();
}

void Transfer::send() {
  const Tensor& topk_ids = input.topk_ids;
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
      const int64_t bytes = layout.mailbox_bytes(row, room);
      block.resize(static_cast<size_t>(bytes));
      sends.push_back({r, block.data(), bytes});
      recvs.push_back({r, state.window->local() + layout.mailbox(bank, r), bytes});
    }
  }
  write_messages(route);
  state.sent.selections += route.selections;
  for (int r = 0; r < num_ranks; ++r) {
    if (state.is_dead(r)) {
      continue;
    }
    const int64_t copies = route.copies[static_cast<size_t>(r)];
    const MailboxHeader header{copies, row.value_bytes, row.scale_bytes, room};
    std::memcpy(mailbox_at(r), &header, sizeof(header));
    state.sent.copies += copies;
    state.sent.node_copies += state.group.topology().same_node(r) ? 0 : copies;
    if (state.is_reachable(r)) {
      state.group.count_traffic(r, copies * layout.message_bytes(row));
      state.send_signal(Signal::kRows, bank, r, handle->call);
    }
  }
  if (state.group.topology().num_nodes() > 1) {
    exchange = state.group.start_exchange(kOp, sends, recvs);
  }
  state.call_of_bank[static_cast<size_t>(bank)] = handle->call;
}

// A message is made where it goes first, and is copied from there to other ranks.
void Transfer::write_messages(const Route& route) {
  const int64_t message_bytes = state.layout.message_bytes(row);
  const quant::RowKernels& kernels = *quant::select_quant_impl().kernels;
  parallel_for(stream, route.num_tokens, 1, [&](int64_t t, int64_t) {
    const std::byte* made = nullptr;
    for (int r = 0; r < route.num_destinations; ++r) {
      const int32_t index = route.at(t, r);
      if (index < 0 || state.is_dead(r)) {
        continue;
      }
      std::byte* to = mailbox_at(r) + LowLatencyLayout::kHeaderBytes + index * message_bytes;
      if (made == nullptr) {
        write_message(kernels, t, to);
        made = to;
      } else {
        std::memcpy(to, made, static_cast<size_t>(message_bytes));
      }
    }
  });
}

void Transfer::write_message(const quant::RowKernels& kernels, int64_t token, std::byte* to) const {
  const LowLatencyLayout& layout = state.layout;
  const Ids ids = Ids::of(input.topk_ids).from(token * layout.topk);
  auto* words = reinterpret_cast<int32_t*>(to);
  words[0] = static_cast<int32_t>(token);
  words[LowLatencyLayout::kTagWord] = input.row_tags ? input.row_tags.data<int32_t>()[token] : -1;
  for (int64_t k = 0; k < layout.topk; ++k) {
    words[LowLatencyLayout::kFirstIdWord + k] = ids[k];
  }
  std::byte* payload = to + layout.row_offset();
  if (input.cast != LowLatencyCast::kNone) {
    cast_row(kernels, input.x.dtype(), input.x.bytes() + token * layout.row_bytes(), layout.hidden,
             input.cast,
             {reinterpret_cast<uint8_t*>(payload),
              reinterpret_cast<float*>(payload + row.scale_offset())});
    return;
  }
  std::memcpy(payload, input.x.bytes() + token * row.value_bytes,
              static_cast<size_t>(row.value_bytes));
  if (row.scale_bytes > 0) {
    std::memcpy(payload + row.scale_offset(), input.x_scale.bytes() + token * row.scale_bytes,
                static_cast<size_t>(row.scale_bytes));
  }
}

void Transfer::wait() {
  state.await_all(Signal::kRows, handle->bank, handle->call, kOp, input.wait_us);
  if (exchange) {
    exchange->wait();
  }
}

void Transfer::release_mailboxes() {
  if (!std::exchange(unpacked, true)) {
    state.signal_all(Signal::kUnpacked, handle->bank, handle->call);
  }
}

// A result is in the caller's tensors, or in the memory of its bank, which is kept for the calls
// after this: a call allocates none.
LowLatencyDispatchOutput Transfer::make_outputs() {
  CpuLowLatency::Kept& kept = state.kept[static_cast<size_t>(handle->bank)];
  const int64_t num_local = state.num_local();
  const int64_t rows = handle->num_rows;
  const int64_t most = num_local * state.max_rows();
  const std::shared_ptr<LowLatencyHandleState> keep = handle;
  // Tensors on the bank keep the handle, and so the bank and the memory, alive.
  const auto choose = [&](const Tensor& given, Tensor& own, int64_t bytes, const TensorKind& spec,
                          int64_t offset = 0) {
    if (given) {
      return given;
    }
    const Tensor& memory = CpuLowLatency::at_least(own, bytes);
    return Tensor::share(keep, memory.bytes() + offset, spec.shape, spec.dtype);
  };
  const LowLatencyInto& into = input.into;
  LowLatencyDispatchOutput output;
  output.x = choose(into.x, kept.x, most * state.layout.row_bytes(), state.rows_spec(input, rows));
  if (row.scale_bytes > 0) {
    const TensorKind most_scales = state.scale_spec(input, state.max_rows());
    output.x_scale =
        choose(into.x_scale, kept.x_scale, row_bytes(most_scales.dtype, most_scales.shape.numel()),
               state.scale_spec(input, rows));
  }
  const TensorKind words{{num_local, rows}, DType::kI32};
  output.row_tags = choose(into.row_tags, kept.row_words, 8 * most, words);
  output.source_token = choose(into.source_token, kept.row_words, 8 * most, words, 4 * most);
  output.expert_num_tokens =
      choose(into.expert_num_tokens, kept.counts, 4 * num_local, {{num_local}, DType::kI32});
  const int64_t num_ranks = state.group.size();
  output.source_ranges = choose(into.source_ranges, kept.ranges, 8 * num_local * num_ranks,
                                {{num_local, num_ranks}, DType::kI64});
  handle->memory = {kept.x, kept.x_scale, kept.row_words, kept.counts, kept.ranges};
  return output;
}

MailboxHeader Transfer::header_of(int source) const {
  MailboxHeader header;
  std::memcpy(&header, state.window->local() + state.layout.mailbox(handle->bank, source),
              sizeof(header));
  return header;
}

// Rows of another kind would be read wrongly.  Every rank finds the same, before it writes a
// result.
void Transfer::expect_same_rows() const {
  for (int source = 0; source < state.group.size(); ++source) {
    if (state.is_dead(source)) {
      continue;
    }
    const MailboxHeader header = header_of(source);
    if (header.value_bytes != row.value_bytes || header.scale_bytes != row.scale_bytes ||
        header.max_tokens != room) {
      throw InvalidArgument(fmt::format(
          "{}: rank {} sends rows of {} and {} bytes with room for {} tokens, rank {} of {} and {} "
          "bytes for {}",
          kOp, source, header.value_bytes, header.scale_bytes, header.max_tokens,
          state.group.rank(), row.value_bytes, row.scale_bytes, room));
    }
  }
}

// The rows of an expert end up in order of (source rank, source token), since messages in a mailbox
// are in order of tokens.
std::vector<const std::byte*> Transfer::find_rows(const LowLatencyDispatchOutput& output) {
  const LowLatencyLayout& layout = state.layout;
  const int num_ranks = state.group.size();
  auto* counts = output.expert_num_tokens.data<int32_t>();
  auto* ranges = output.source_ranges.data<int64_t>();
  std::fill_n(counts, state.num_local(), 0);
  std::fill_n(ranges, state.num_local() * num_ranks, int64_t{0});
  std::vector<const std::byte*> messages;
  for (int source = 0; source < num_ranks; ++source) {
    for (int64_t l = 0; l < state.num_local(); ++l) {
      ranges[l * num_ranks + source] = int64_t{counts[l]} << 32;
    }
    if (state.is_dead(source)) {
      continue;
    }
    const std::byte* mailbox = state.window->local() + layout.mailbox(handle->bank, source);
    const int64_t count = header_of(source).count;
    for (int64_t i = 0; i < count; ++i) {
      const std::byte* message =
          mailbox + LowLatencyLayout::kHeaderBytes + i * layout.message_bytes(row);
      const auto* words = reinterpret_cast<const int32_t*>(message);
      for (int64_t k = 0; k < layout.topk; ++k) {
        const int32_t id = words[LowLatencyLayout::kFirstIdWord + k];
        if (id < 0 || state.placement.rank_of(id) != state.group.rank()) {
          continue;
        }
        const int64_t local = state.placement.local_index(id);
        handle->selections.push_back({source, words[0], static_cast<int32_t>(k),
                                      local * handle->num_rows + counts[local]++});
        ++ranges[local * num_ranks + source];
        messages.push_back(message);
      }
    }
  }
  return messages;
}

// Puts the scales of a row, which are f32 [G] of a cast, to where `scales` says.
void Transfer::copy_scales(const std::byte* from, int64_t row_index, const Tensor& to) const {
  if (input.cast == LowLatencyCast::kNone || input.scales == LowLatencyScales::kRows) {
    std::memcpy(to.bytes() + row_index * row.scale_bytes, from,
                static_cast<size_t>(row.scale_bytes));
    return;
  }
  const int64_t num_groups = row.scale_bytes / static_cast<int64_t>(sizeof(float));
  const int64_t columns = to.dim(1);
  const int64_t local = row_index / handle->num_rows;
  const int64_t in_expert = row_index % handle->num_rows;
  for (int64_t c = 0; c < columns; ++c) {
    std::byte* place = to.bytes() + 4 * ((local * columns + c) * handle->num_rows + in_expert);
    if (input.scales == LowLatencyScales::kColumns) {
      std::memcpy(place, from + 4 * c, sizeof(float));
      continue;
    }
    uint32_t packed = 0;
    for (int64_t g = 4 * c; g < std::min(num_groups, 4 * c + 4); ++g) {
      uint32_t bits = 0;
      std::memcpy(&bits, from + 4 * g, sizeof(bits));
      packed |= (bits >> 23 & 0xff) << 8 * (g - 4 * c);
    }
    std::memcpy(place, &packed, sizeof(packed));
  }
}

LowLatencyDispatchOutput Transfer::unpack() {
  const LowLatencyLayout& layout = state.layout;
  expect_same_rows();
  LowLatencyDispatchOutput output = make_outputs();
  const std::vector<const std::byte*> messages = find_rows(output);
  parallel_for(stream, static_cast<int64_t>(messages.size()), 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t to = handle->selections[static_cast<size_t>(i)].row;
      const std::byte* message = messages[static_cast<size_t>(i)];
      const auto* words = reinterpret_cast<const int32_t*>(message);
      output.row_tags.data<int32_t>()[to] = words[LowLatencyLayout::kTagWord];
      output.source_token.data<int32_t>()[to] = words[0];
      const std::byte* payload = message + layout.row_offset();
      std::memcpy(output.x.bytes() + to * row.value_bytes, payload,
                  static_cast<size_t>(row.value_bytes));
      if (row.scale_bytes > 0) {
        copy_scales(payload + row.scale_offset(), to, output.x_scale);
      }
    }
  });
  release_mailboxes();
  const auto* counts = output.expert_num_tokens.data<int32_t>();
  for (int64_t l = 0; l < state.num_local(); ++l) {
    state.expert_rows.data<int64_t>()[l] += counts[l];
    if (input.received) {
      input.received.data<int32_t>()[l] += counts[l];
    }
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
  const int64_t room = room_of(input);
  if (topk_ids.numel() > room) {  // else any expert has room for all of them
    std::vector<int64_t> num_selections(static_cast<size_t>(placement.num_experts()), 0);
    const Ids ids = Ids::of(topk_ids);
    const int64_t num_ids = topk_ids.numel();
    for (int64_t i = 0; i < num_ids; ++i) {
      if (ids[i] >= 0) {
        ++num_selections[static_cast<size_t>(ids[i])];
      }
    }
    for (size_t e = 0; e < num_selections.size(); ++e) {
      expect_room(static_cast<int64_t>(e), num_selections[e], room);
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
  handle->num_rows = room * group.size();
  results[bank] = handle;
  auto transfer = std::make_shared<Transfer>(*this, stream, input, handle);
  transfer->send();
  return in_halves([transfer] { transfer->wait(); }, [transfer] { return transfer->unpack(); });
}

}  // namespace moebius
