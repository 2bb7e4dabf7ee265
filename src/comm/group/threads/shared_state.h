// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the rank threads of one group share.
//
// Each rank owns a RankState; only the owner writes it, except for `phases`.  A call at epoch e
// uses slot e % kSlots of its rank: the owner fills in the blocks, then stores the stamp, which
// publishes them.  A slot is filled again at epoch e + kSlots, once every rank has completed e.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/group/blocks.h"
#include "comm/group/peer_group.h"
#include "comm/group/threads/slow_link.h"

namespace moebius::comm {

constexpr size_t kCacheLine = 64;
constexpr int64_t kSlots = Group::kMaxStarted;

// (epoch, op id) in one word; 0 before the first call.
struct Stamp {
  static constexpr int kOpBits = 20;
  uint64_t word = 0;

  static Stamp make(int64_t epoch, uint64_t op_id) {
    return {static_cast<uint64_t>(epoch) << kOpBits | op_id};
  }
  int64_t epoch() const { return static_cast<int64_t>(word >> kOpBits); }
  uint64_t op_id() const { return word & ((uint64_t{1} << kOpBits) - 1); }
};

// State of the blocks from one rank to another in one slot.  The owner moves it to kPosted and
// kWithdrawn, the peer from kPosted to kReading and kRead.
enum class Phase : uint32_t { kRead, kPosted, kReading, kWithdrawn };
struct alignas(kCacheLine) PhaseCell {
  std::atomic<Phase> phase{Phase::kRead};
  Due due;  // the peer looks no earlier; published by the stamp
};

struct Slot {
  std::atomic<uint64_t> stamp{0};
  BlocksByPeer<SendBlock> sends;
  std::vector<PhaseCell> phases;  // [num_ranks]
};

struct alignas(kCacheLine) RankState {
  std::array<Slot, static_cast<size_t>(kSlots)> slots;
  alignas(kCacheLine) std::atomic<uint64_t> latest{0};  // stamp of the newest call
  std::atomic<int64_t> completed{0};                    // every call up to this epoch is complete
  std::atomic<int> waits_for{-1};
  std::atomic<uint64_t> waits_in{0};  // id of the operation, while it waits
  std::atomic<bool> has_left{false};
  std::atomic<Due::rep> last_due{0};  // of all that it has sent over a slow link
  LateSignals late_signals;           // to this rank
};

class SharedState {
 public:
  explicit SharedState(int num_ranks);

  RankState& of(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  Slot& slot(int rank, int64_t epoch) {
    return of(rank).slots[static_cast<size_t>(epoch % kSlots)];
  }
  std::atomic<int> num_left{0};

  // A small number for an operation's name, the same for every rank; > 0.
  uint64_t op_id(const std::string& op);
  std::string op_name(uint64_t id);

  void tell_failure(const Failure& failure);
  // Adds to `failures` those beyond its end.
  void read_told(std::vector<Failure>& failures);
  // Authors in the order in which they told.
  std::vector<int> failure_authors();

 private:
  std::vector<RankState> ranks_;
  std::mutex mutex_;  // guards the rest, none of it used while all goes well
  std::unordered_map<std::string, uint64_t> op_ids_;
  std::vector<std::string> op_names_;
  std::vector<Failure> failures_;
  std::atomic<size_t> num_failures_{0};
};

}  // namespace moebius::comm
