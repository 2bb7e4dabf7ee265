// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/processes/process_group.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/group/node_memory.h"
#include "comm/group/processes/process_exchange.h"
#include "comm/group/started.h"

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

std::unique_ptr<Exchange> ProcessGroup::post_exchange(const Call& call,
                                                      std::span<const SendBlock> sends,
                                                      std::span<const RecvBlock> recvs,
                                                      BlockReader reader) {
  if (!started_.empty() && started_.front()->epoch() + kMaxStarted <= call.epoch) {
    started_.front()->wait();
  }
  own().op.set(call.op);
  own().epoch.store(call.epoch, std::memory_order_relaxed);
  return std::make_unique<ProcessExchange>(*this, call, sends, recvs, std::move(reader));
}

std::unique_ptr<Window> ProcessGroup::map_window(std::string_view op, int64_t bytes) {
  return map_node_memory(*this, op, bytes);
}

void ProcessGroup::progress() {
  // In order of epoch on both sides, so that a pipe needs no marks between calls.
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) {
      std::all_of(started_.begin(), started_.end(),
                  [&](ProcessExchange* exchange) { return exchange->send_to(peer); });
      std::all_of(started_.begin(), started_.end(),
                  [&](ProcessExchange* exchange) { return exchange->receive_from(peer); });
    }
  }
  advance_started(started_, [](ProcessExchange& exchange) { return exchange.finish(); });
}

std::optional<Failure> ProcessGroup::told_failure(size_t i) {
  board_->read_told(num_seen_, failures_);
  return i < failures_.size() ? std::optional(failures_[i]) : std::nullopt;
}

bool ProcessGroup::has_left(int peer) const {
  // pairs with the destructor: all that the peer did before it left.
  return board_->part(peer).has_left.load(std::memory_order_acquire);
}

int ProcessGroup::waits_for(int peer) const {
  return board_->part(peer).waits_for.load(std::memory_order_relaxed);
}

void ProcessGroup::show_waiting(int peer, std::string_view op) {
  if (peer >= 0 && waits_for(rank()) < 0) {
    own().waits_in.set(op);
  }
  own().waits_for.store(peer, std::memory_order_relaxed);
}

std::string ProcessGroup::whereabouts(int peer) const {
  Board::Part& theirs = board_->part(peer);
  const int awaited = waits_for(peer);
  const std::string op = theirs.op.get();
  return fmt::format(
      "at epoch {} ({}), waiting for {}", theirs.epoch.load(std::memory_order_relaxed),
      op.empty() ? "start" : op,
      awaited < 0 ? "nobody" : fmt::format("rank {} in {}", awaited, theirs.waits_in.get()));
}

}  // namespace moebius::comm
