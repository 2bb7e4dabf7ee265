// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/processes/process_exchange.h"

#include <algorithm>
#include <utility>

namespace moebius::comm {

ProcessExchange::ProcessExchange(PeerGroup& group,
                                 Board& board,
                                 const Call& call,
                                 ExchangeBlocks blocks)
    : StreamExchange(group, call, std::move(blocks)),
      board_(board),
      moved_(static_cast<size_t>(group.size())) {
  copy_own();
  const Peer& own = peer(group.rank());
  moved_[static_cast<size_t>(group.rank())] = {own.out.bytes(), own.in.bytes()};
  const bool is_alone = start();
  for (int r = 0; r < group.size() && is_alone; ++r) {  // else the bytes of earlier calls go first
    if (r != group.rank()) {
      send_to(r);
    }
  }
}

ProcessExchange::~ProcessExchange() {
  if (!is_done_) {
    abandon();
  }
}

bool ProcessExchange::send_to(int rank) {
  const ByteStream& out = peer(rank).out;
  int64_t& moved = moved_[static_cast<size_t>(rank)].out;
  Pipe& pipe = board_.pipe(group_.rank(), rank);
  while (moved < out.bytes()) {
    const std::span<std::byte> room = pipe.room();
    if (room.empty()) {
      return false;
    }
    const int64_t bytes = std::min(static_cast<int64_t>(room.size()), out.bytes() - moved);
    out.copy_out(moved, moved + bytes, room.data());
    pipe.put(bytes);
    moved += bytes;
  }
  return true;
}

bool ProcessExchange::receive_from(int rank) {
  Peer& from = peer(rank);
  int64_t& moved = moved_[static_cast<size_t>(rank)].in;
  Pipe& pipe = board_.pipe(rank, group_.rank());
  while (moved < from.in.bytes()) {
    const std::span<const std::byte> there = pipe.there();
    if (there.empty()) {
      return false;
    }
    // The header is checked before any block is written.
    const int64_t end = moved < kHeaderBytes ? kHeaderBytes : from.in.bytes();
    const int64_t bytes = std::min(static_cast<int64_t>(there.size()), end - moved);
    from.in.copy_in(moved, moved + bytes, there.data());
    pipe.take(bytes);
    moved += bytes;
    if (moved == kHeaderBytes) {
      from.has_arrived = true;
      check_header(rank);
    }
  }
  return true;
}

bool ProcessExchange::advance() {
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (is_open(rank)) {
      return false;
    }
  }
  return finish();
}

bool ProcessExchange::is_open(int rank) const {
  const Moved& moved = moved_[static_cast<size_t>(rank)];
  return moved.out < peer(rank).out.bytes() || moved.in < peer(rank).in.bytes();
}

bool ProcessExchange::is_missing(int rank) const {
  // Why the absent first: a peer that has come but has not read may itself wait for them.
  for (int r = 0; r < group_.size(); ++r) {
    if (!has_arrived(r)) {
      return !has_arrived(rank);
    }
  }
  return is_open(rank);
}

}  // namespace moebius::comm
