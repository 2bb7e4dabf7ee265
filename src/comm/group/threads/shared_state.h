// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// SharedState: what the rank threads of one group share.
//
// Each rank owns a RankState, and only the owner writes it, except for `phases` and `late_signals`.
// A call at epoch e uses slot e % kSlots of its rank.  The owner fills in the blocks and then
// stores the stamp, which publishes them.  The slot is filled again at epoch e + kSlots, once every
// rank has completed e.
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

// The epoch and the operation's id in one word; 0 before the first call.
struct Stamp {
  static constexpr int kOpBits = 20;
  uint64_t word = 0;

  static Stamp make(int64_t epoch, uint64_t op_id) {
    return {static_cast<uint64_t>(epoch) << kOpBits | op_id};
  }
  int64_t epoch() const { return static_cast<int64_t>(word >> kOpBits); }
  uint64_t op_id() const { return word & ((uint64_t{1} << kOpBits) - 1); }
};

// The state of the blocks from one rank to another in one slot.  The owner sets kPosted and
// kWithdrawn; the peer goes from kPosted to kReading and then to kRead.
enum class Phase : uint32_t { kRead, kPosted, kReading, kWithdrawn };
struct alignas(kCacheLine) PhaseCell {
  std::atomic<Phase> phase{Phase::kRead};
  Due due;  // the peer looks at the blocks no earlier; published by the stamp
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
  std::atomic<uint64_t> waits_in{0};  // the operation's id, while it waits
  std::atomic<bool> has_left{false};
  std::atomic<Due::rep> last_due{0};  // when the last it has sent over a slow link arrives
  LateSignals late_signals;           // under way to this rank
};

class SharedState {
 public:
  explicit SharedState(int num_ranks);

  RankState& of(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  Slot& slot(int rank, int64_t epoch) {
    return of(rank).slots[static_cast<size_t>(epoch % kSlots)];
  }
  std::atomic<int> num_left{0};

  // A small number > 0 for an operation's name, the same for every rank.
  uint64_t op_id(const std::string& op);
  std::string op_name(uint64_t id);

  // Takes no memory.  Once every rank has told several, further ones are dropped.
  void tell_failure(const Failure& failure);
  // Appends the failures told so far that `failures`, the first of them, does not have yet.
  void read_told(std::vector<Failure>& failures);
  // Authors in the order in which they told.
  std::vector<int> failure_authors();

 private:
  std::vector<RankState> ranks_;
  std::mutex mutex_;  // guards the rest, which is not used while all goes well
  std::unordered_map<std::string, uint64_t> op_ids_;
  std::vector<std::string> op_names_;
  std::vector<Failure> failures_;
  std::atomic<size_t> num_failures_{0};
};

}  // namespace moebius::comm
