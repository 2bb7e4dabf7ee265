// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/processes/process_group.h"

#include <algorithm>
#include <utility>

#include "comm/group/processes/arrival.h"
#include "comm/group/processes/process_exchange.h"

namespace moebius::comm {

ProcessGroup::ProcessGroup(std::shared_ptr<Board> board,
                           Topology topology,
                           std::chrono::milliseconds timeout,
                           int num_neighbours,
                           int num_cpus,
                           ProcessWatch watch)
    : PeerGroup(std::move(topology), timeout, num_neighbours, num_cpus),
      board_(std::move(board)),
      watch_(std::move(watch)),
      num_seen_(static_cast<size_t>(size()) + 1, 0) {
  own().has_come.store(true, std::memory_order_release);  // pairs with has_come
}

ProcessGroup::~ProcessGroup() {
  tell_untold();
  own().has_left.store(true, std::memory_order_release);  // pairs with has_left
}

bool ProcessGroup::has_come(int peer) const {
  return board_->part(peer).has_come.load(std::memory_order_acquire);  // pairs with the constructor
}

void ProcessGroup::await_peers(std::string_view op) {
  wait_for({{op, epoch_},
            [&] {
              int peer = 0;
              while (peer < size() && has_come(peer)) {
                ++peer;
              }
              return peer == size();
            },
            [&](int peer) { return !has_come(peer); },
            [](int) { return std::string("expected to join"); }});
}

void ProcessGroup::hear_failures() {
  // Why in this order: a process that fails tells why before it ends, so whoever finds that it has
  // ended finds what it told, too.
  std::vector<int> ended = watch_.look();
  board_->read_told(num_seen_, failures_);
  std::erase_if(ended, [this](int peer) { return has_left(peer); });
  if (!ended.empty()) {
    // Of several the first is blamed, and all are named.  So are those that have not come yet: they
    // may be why another has given up.
    std::vector<int> not_come;
    for (int peer = 0; peer < size(); ++peer) {
      if (!has_come(peer)) {
        not_come.push_back(peer);
      }
    }
    const int peer = ended.front();
    const Board::Part& theirs = board_->part(peer);
    Failure failure = make_failure(peer, {theirs.op.get(), theirs.epoch}, peer,
                                   std::string_view(ProcessWatch::describe(ended, not_come)));
    failure.is_silence = true;
    tell_failure(failure);
    board_->read_told(num_seen_, failures_);
  }
}

std::unique_ptr<PeerGroup> ProcessGroup::make_sub_group(const SubGroup& sub) {
  constexpr std::string_view kOp = "split";
  Arrival own = sub.is_none() ? Arrival() : Arrival(sub.topology.rank, sub.size());
  std::vector<Hello> hellos(static_cast<size_t>(size()));
  all_gather_bytes(*this, kOp, &own.hello(), sizeof(Hello), hellos.data());
  if (sub.is_none()) {
    return nullptr;
  }
  std::vector<Hello> members;
  for (const int member : sub.members) {
    members.push_back(hellos[static_cast<size_t>(member)]);
  }
  return own.meet(kOp, members, sub.topology, timeout_);
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
  // pairs with look_at: what this rank told before it stopped to wait.
  own().waits_for.store(peer, std::memory_order_release);
}

std::optional<PeerSight> ProcessGroup::look_at(int peer) const {
  const Board::Part& theirs = board_->part(peer);
  const std::string op = theirs.op.get();
  return PeerSight{theirs.epoch.load(std::memory_order_relaxed), op.empty() ? "start" : op,
                   theirs.waits_for.load(std::memory_order_acquire), theirs.waits_in.get(),
                   theirs.is_stopped || watch_.is_rank_stopped(peer)};
}

}  // namespace moebius::comm
