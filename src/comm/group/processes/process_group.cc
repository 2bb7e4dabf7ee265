// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/processes/process_group.h"

#include <algorithm>

#include "comm/group/processes/process_exchange.h"

namespace moebius::comm {

ProcessGroup::ProcessGroup(std::shared_ptr<Board> board,
                           Topology topology,
                           std::chrono::milliseconds timeout,
                           int num_cpus)
    : PeerGroup(topology, timeout, topology.size, num_cpus),
      board_(std::move(board)),
      num_seen_(static_cast<size_t>(topology.size) + 1, 0) {}

ProcessGroup::~ProcessGroup() {
  tell_untold();
  own().has_left.store(true, std::memory_order_release);  // pairs with has_left
}

std::unique_ptr<Exchange> ProcessGroup::post_exchange(const Call& call, ExchangeBlocks blocks) {
  wait_for_oldest(call);
  own().op.set(call.op);
  own().epoch.store(call.epoch, std::memory_order_relaxed);
  return std::make_unique<ProcessExchange>(*this, *board_, call, std::move(blocks));
}

void ProcessGroup::progress() {
  // Both sides move bytes in order of epoch, so that a pipe needs no marks between calls.
  const auto move = [&](bool (ProcessExchange::*step)(int), int peer) {
    std::all_of(started_.begin(), started_.end(), [&](PeerExchange* exchange) {
      return (static_cast<ProcessExchange*>(exchange)->*step)(peer);
    });
  };
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) {
      move(&ProcessExchange::send_to, peer);
      move(&ProcessExchange::receive_from, peer);
    }
  }
  advance_started();
}

bool ProcessGroup::has_left(int peer) const {
  // pairs with the destructor: all that the peer did before it left.
  return board_->part(peer).has_left.load(std::memory_order_acquire);
}

void ProcessGroup::show_waiting(int peer, std::string_view op) {
  if (peer >= 0) {
    own().waits_in.set(op);
  }
  own().waits_for.store(peer, std::memory_order_relaxed);
}

std::optional<PeerSight> ProcessGroup::look_at(int peer) const {
  const Board::Part& theirs = board_->part(peer);
  const std::string op = theirs.op.get();
  return PeerSight{theirs.epoch.load(std::memory_order_relaxed), op.empty() ? "start" : op,
                   theirs.waits_for.load(std::memory_order_relaxed), theirs.waits_in.get()};
}

}  // namespace moebius::comm
