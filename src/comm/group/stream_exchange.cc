// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/stream_exchange.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace moebius::comm {

StreamExchange::StreamExchange(PeerGroup& group, const Call& call, ExchangeBlocks blocks)
    : PeerExchange(group, call, std::move(blocks.reader)),
      recv_list_(blocks.recvs.begin(), blocks.recvs.end()),
      shown_(reader_ != nullptr),
      peers_(static_cast<size_t>(group.size())) {
  if (reader_) {
    shown_.place(recv_list_);
  }
  sends_.assign(blocks.sends, group.size());
  recvs_.assign(recv_list_, group.size());
  for (int rank = 0; rank < group.size(); ++rank) {
    Peer& state = peer(rank);
    state.sent = describe_blocks(call_, sends_.of(rank));
    state.expected = describe_blocks(call_, recvs_.of(rank));
    state.out.append(reinterpret_cast<std::byte*>(&state.sent), kHeaderBytes);
    state.in.append(reinterpret_cast<std::byte*>(&state.seen), kHeaderBytes);
    for (const SendBlock& block : sends_.of(rank)) {
      // ByteStream has no const form; `out` is only read.
      state.out.append(static_cast<std::byte*>(const_cast<void*>(block.data)), block.bytes);
    }
    for (const RecvBlock& block : recvs_.of(rank)) {
      state.in.append(static_cast<std::byte*>(block.data), block.bytes);
    }
  }
}

void StreamExchange::check_header(int rank) {
  const Peer& from = peer(rank);
  if (auto failure = find_mismatch(group_.rank(), call_, rank, from.seen, from.expected)) {
    group_.fail(call_, *failure);
  }
}

void StreamExchange::copy_own() {
  Peer& own = peer(group_.rank());
  own.seen = own.sent;
  check_header(group_.rank());
  const auto sent = sends_.of(group_.rank());
  const auto received = recvs_.of(group_.rank());
  for (size_t i = 0; i < sent.size(); ++i) {
    if (sent[i].bytes > 0) {
      std::memcpy(received[i].data, sent[i].data, static_cast<size_t>(sent[i].bytes));
    }
  }
  own.has_arrived = true;
}

std::string StreamExchange::describe_rest(int rank) const {
  const Peer& state = peer(rank);
  return fmt::format("expected to send and receive {} and {} bytes",
                     state.in.bytes() - kHeaderBytes, state.out.bytes() - kHeaderBytes);
}

}  // namespace moebius::comm
