// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/threads/thread_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/group/peer_window.h"
#include "comm/group/share.h"
#include "comm/group/threads/thread_exchange.h"
#include "core/cpu_sets.h"
#include "core/host_allocator.h"

namespace moebius::comm {

namespace {

using Memory = std::shared_ptr<std::byte>;
using Memories = std::shared_ptr<const std::vector<Memory>>;  // by rank

// The rank that owns the memory zeroes it, so that its pages lie on that rank's NUMA node.
Memory make_memory(int64_t bytes) {
  expect_available(bytes);
  Memory memory = allocate_block(bytes);
  std::memset(memory.get(), 0, static_cast<size_t>(bytes));
  return memory;
}

// Every rank holds the memory of all, so that it lives until the last window is gone.
class ThreadWindow final : public PeerWindow {
 public:
  ThreadWindow(ThreadGroup& group, int64_t bytes, std::vector<std::byte*> peers, Memories memories)
      : PeerWindow(group.rank(), bytes, std::move(peers), memories),
        group_(group),
        memories_(std::move(memories)) {}

  void signal(int rank, int64_t offset, int64_t value) override {
    const Due due = group_.due(rank);
    if (is_due(due)) {
      Window::signal(rank, offset, value);
      return;
    }
    // The signal keeps the memory alive: the peer may destroy its window before it looks.
    const Memory& memory = (*memories_)[static_cast<size_t>(rank)];
    auto* word = reinterpret_cast<int64_t*>(memory.get() + offset);
    group_.shared().of(rank).late_signals.add({due, {memory, word}, value});
  }

 private:
  ThreadGroup& group_;
  const Memories memories_;
};

}  // namespace

ThreadGroup::ThreadGroup(std::shared_ptr<SharedState> shared,
                         Topology topology,
                         const Setting& setting)
    : PeerGroup(std::move(topology), setting.timeout, setting.num_threads, setting.num_cpus),
      shared_(std::move(shared)),
      setting_(setting) {
  if (setting.link.latency.count() > 0 || setting.link.bytes_per_second > 0) {
    departures_.emplace(setting.link, size());
  }
}

ThreadGroup::~ThreadGroup() {
  tell_untold();
  own().has_left.store(true, std::memory_order_release);  // pairs with has_left
  shared_->num_left.fetch_add(1, std::memory_order_release);
}

const Stream& ThreadGroup::copy_stream() {
  if (!copy_stream_) {
    // A thread that was pinned since the group was made has its CPUs for itself.
    const bool is_pinned = num_usable_cpus() < setting_.num_cpus;
    copy_stream_ = is_pinned ? Stream::cpu() : Stream::cpu(setting_.copy_threads);
  }
  return *copy_stream_;
}

void ThreadGroup::count_traffic(int peer, int64_t bytes) {
  Group::count_traffic(peer, bytes);
  if (departures_) {
    departures_->add(peer, bytes);
  }
}

Due ThreadGroup::due(int peer) {
  if (!departures_ || peer == rank()) {
    return {};
  }
  const Due due = departures_->next(peer);
  auto& last = own().last_due;
  last.store(std::max(last.load(std::memory_order_relaxed), due.count()),
             std::memory_order_relaxed);
  return due;
}

uint64_t ThreadGroup::op_id(std::string_view op) {
  std::string key(op);
  const auto known = op_ids_.find(key);
  if (known != op_ids_.end()) {
    return known->second;
  }
  const uint64_t id = shared_->op_id(key);
  op_ids_.emplace(std::move(key), id);
  return id;
}

void ThreadGroup::wait_for_slot(const Call& call) {
  const int64_t needed = call.epoch - kSlots;
  if (completed_by_all_ >= needed) {
    return;
  }
  const auto completed_by = [&](int peer) {
    // pairs with publish_completed: the peer no longer looks at this rank's slot.
    return shared_->of(peer).completed.load(std::memory_order_acquire);
  };
  wait_for({call,
            [&] {
              completed_by_all_ = completed_by(0);
              for (int peer = 1; peer < size(); ++peer) {
                completed_by_all_ = std::min(completed_by_all_, completed_by(peer));
              }
              return completed_by_all_ >= needed;
            },
            [&](int peer) { return completed_by(peer) < needed; },
            [&](int) { return fmt::format("expected to complete epoch {}", needed); }});
}

std::unique_ptr<Exchange> ThreadGroup::post_exchange(const Call& call, ExchangeBlocks blocks) {
  wait_for_slot(call);
  return std::make_unique<ThreadExchange>(*this, call, std::move(blocks));
}

void ThreadGroup::publish_completed() {
  // Why not epoch_: it counts a call that still waits for its slot and has not been published.
  const int64_t published = Stamp{own().latest.load(std::memory_order_relaxed)}.epoch();
  const int64_t completed = started_.empty() ? published : started_.front()->epoch() - 1;
  // pairs with wait_for_slot: this rank's reads of the peers' slots are over.
  own().completed.store(completed, std::memory_order_release);
}

void ThreadGroup::progress() {
  if (departures_) {
    own().late_signals.store_due();
  }
  const size_t num_before = started_.size();
  advance_started();
  if (started_.size() != num_before) {
    publish_completed();
  }
}

std::unique_ptr<Window> ThreadGroup::map_window(std::string_view op, int64_t bytes) {
  const auto memories =
      std::make_shared<const std::vector<Memory>>(share(*this, op, make_memory(bytes)));
  return std::make_unique<ThreadWindow>(*this, bytes, addresses_of(*memories, topology()),
                                        memories);
}

std::unique_ptr<PeerGroup> ThreadGroup::make_sub_group(const SubGroup& sub) {
  const bool is_first = !sub.is_none() && sub.first() == rank();
  const auto shared =
      share(*this, "split", is_first ? std::make_shared<SharedState>(sub.size()) : nullptr);
  return sub.is_none() ? nullptr
                       : std::make_unique<ThreadGroup>(shared[static_cast<size_t>(sub.first())],
                                                       sub.topology, setting_);
}

bool ThreadGroup::has_left(int peer) const {
  return shared_->num_left.load(std::memory_order_relaxed) > 0 &&
         // pairs with the destructor: all that the peer did before it left.
         shared_->of(peer).has_left.load(std::memory_order_acquire) &&
         is_due(Due(shared_->of(peer).last_due.load(std::memory_order_relaxed)));
}

void ThreadGroup::show_waiting(int peer, std::string_view op) {
  if (peer >= 0) {
    own().waits_in.store(op_id(op), std::memory_order_relaxed);
  }
  // pairs with look_at: what this rank told before it stopped to wait.
  own().waits_for.store(peer, std::memory_order_release);
}

std::optional<PeerSight> ThreadGroup::look_at(int peer) const {
  const RankState& theirs = shared_->of(peer);
  const Stamp latest{theirs.latest.load(std::memory_order_relaxed)};
  return PeerSight{latest.epoch(), shared_->op_name(latest.op_id()),
                   theirs.waits_for.load(std::memory_order_acquire),
                   shared_->op_name(theirs.waits_in.load(std::memory_order_relaxed))};
}

}  // namespace moebius::comm
