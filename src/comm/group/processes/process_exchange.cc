// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/processes/process_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace moebius::comm {

ProcessExchange::ProcessExchange(ProcessGroup& group,
                                 const Call& call,
                                 std::span<const SendBlock> sends,
                                 std::span<const RecvBlock> recvs,
                                 BlockReader reader)
    : group_(group),
      call_(call),
      recv_list_(recvs.begin(), recvs.end()),
      reader_(std::move(reader)),
      shown_(reader_ != nullptr),
      peers_(static_cast<size_t>(group.size())) {
  if (reader_) {
    shown_.place(recv_list_);
  }
  BlocksByPeer<SendBlock> sends_by;
  BlocksByPeer<RecvBlock> recvs_by;
  sends_by.assign(sends, group.size());
  recvs_by.assign(recv_list_, group.size());
  for (int r = 0; r < group.size(); ++r) {
    Peer& state = peer(r);
    for (const SendBlock& block : sends_by.of(r)) {
      state.out.append(static_cast<std::byte*>(const_cast<void*>(block.data)), block.bytes);
    }
    for (const RecvBlock& block : recvs_by.of(r)) {
      state.in.append(static_cast<std::byte*>(block.data), block.bytes);
    }
    state.sent = describe_blocks(call_, sends_by.of(r));
    state.expected = describe_blocks(call_, recvs_by.of(r));
  }
  copy_own();
  group_.started_.push_back(this);
  for (int r = 0; r < group.size(); ++r) {
    if (r != group.rank() && group_.started_.size() == 1) {
      send_to(r);  // else calls before it come first
    }
  }
}

ProcessExchange::~ProcessExchange() {
  if (!is_done_) {
    std::erase(group_.started_, this);
    group_.abandon(call_);
  }
}

void ProcessExchange::copy_own() {
  Peer& own = peer(group_.rank());
  own.seen = own.sent;
  check_header(group_.rank());
  for (int64_t at = 0; at < own.out.bytes();) {
    constexpr int64_t kPiece = 64 << 10;
    std::byte piece[kPiece];
    const int64_t end = std::min(own.out.bytes(), at + kPiece);
    own.out.copy_out(at, end, piece);
    own.in.copy_in(at, end, piece);
    at = end;
  }
  own.num_sent = kHeaderBytes + own.out.bytes();
  own.num_received = kHeaderBytes + own.in.bytes();
}

bool ProcessExchange::send_to(int rank) {
  Peer& to = peer(rank);
  Pipe& pipe = group_.board_->pipe(group_.rank(), rank);
  const int64_t total = kHeaderBytes + to.out.bytes();
  while (to.num_sent < total) {
    const std::span<std::byte> room = pipe.room();
    if (room.empty()) {
      return false;
    }
    const bool is_header = to.num_sent < kHeaderBytes;
    const int64_t bytes = std::min(static_cast<int64_t>(room.size()),
                                   (is_header ? kHeaderBytes : total) - to.num_sent);
    if (is_header) {
      std::memcpy(room.data(), reinterpret_cast<const std::byte*>(&to.sent) + to.num_sent,
                  static_cast<size_t>(bytes));
    } else {
      const int64_t begin = to.num_sent - kHeaderBytes;
      to.out.copy_out(begin, begin + bytes, room.data());
    }
    pipe.put(bytes);
    to.num_sent += bytes;
  }
  return true;
}

bool ProcessExchange::receive_from(int rank) {
  Peer& from = peer(rank);
  Pipe& pipe = group_.board_->pipe(rank, group_.rank());
  const int64_t total = kHeaderBytes + from.in.bytes();
  while (from.num_received < total) {
    const std::span<const std::byte> there = pipe.there();
    if (there.empty()) {
      return false;
    }
    const bool is_header = from.num_received < kHeaderBytes;
    const int64_t bytes = std::min(static_cast<int64_t>(there.size()),
                                   (is_header ? kHeaderBytes : total) - from.num_received);
    if (is_header) {
      std::memcpy(reinterpret_cast<std::byte*>(&from.seen) + from.num_received, there.data(),
                  static_cast<size_t>(bytes));
    } else {
      const int64_t begin = from.num_received - kHeaderBytes;
      from.in.copy_in(begin, begin + bytes, there.data());
    }
    pipe.take(bytes);
    from.num_received += bytes;
    if (is_header && from.num_received == kHeaderBytes) {
      check_header(rank);
    }
  }
  return true;
}

void ProcessExchange::check_header(int rank) {
  Peer& from = peer(rank);
  if (auto failure = find_mismatch(group_.rank(), call_, rank, from.seen, from.expected)) {
    group_.fail(call_, std::move(*failure));
  }
}

bool ProcessExchange::is_missing(int rank) const {
  const Peer& state = peers_[static_cast<size_t>(rank)];
  return state.num_sent < kHeaderBytes + state.out.bytes() ||
         state.num_received < kHeaderBytes + state.in.bytes();
}

bool ProcessExchange::finish() {
  for (int r = 0; r < group_.size(); ++r) {
    if (is_missing(r)) {
      return false;
    }
  }
  return is_done_ = shown_.show(group_, reader_, recv_list_);
}

PeerGroup::Wait ProcessExchange::as_wait() const {
  // Why the absent first: who has come but not read may itself wait for them.
  const auto any_absent = [this] {
    for (int r = 0; r < group_.size(); ++r) {
      if (!has_arrived(r)) {
        return true;
      }
    }
    return false;
  };
  return {call_, [this] { return is_done_; },
          [this, any_absent](int r) { return any_absent() ? !has_arrived(r) : is_missing(r); },
          [this](int r) {
            const Peer& state = peers_[static_cast<size_t>(r)];
            return has_arrived(r) ? fmt::format("expected to send and receive {} and {} bytes",
                                                state.in.bytes(), state.out.bytes())
                                  : fmt::format("expected at epoch {}", call_.epoch);
          }};
}

bool ProcessExchange::test() {
  return is_done_ || group_.check(as_wait());
}

void ProcessExchange::wait() {
  if (!is_done_) {
    group_.wait_for(as_wait());
  }
}

}  // namespace moebius::comm
