// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// BankPool: windows that receive rows.  Results are tensors on a bank, and a bank is free again
// when the last of them is gone.  Each rank finds that out for itself, so it picks its own bank and
// tells the others; only making a new bank is collective.
// As in a DeviceArena, a bank that a captured call has taken goes to captured calls only.
// Thread-safety: one thread at a time may use an object.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/device/device_arena.h"
#include "core/ordered_lease.h"
#include "moebius/group.h"

namespace moebius {

class BankPool {
 public:
  static constexpr int64_t kNone = -1;

  // The largest free bank, or kNone.
  int64_t pick(comm::Launch launch = comm::Launch::kNow) const;
  int64_t bytes(int64_t bank) const {
    return bank == kNone ? 0 : banks_[static_cast<size_t>(bank)].window->bytes();
  }
  int64_t bytes() const;  // of all banks
  // The bytes that a bank for `bytes` is made with: a quarter more, so that batches of slightly
  // different sizes settle on the same banks.
  static int64_t roomy(int64_t bytes) { return bytes + bytes / 4; }
  // Collective.  Adds a bank of at least `bytes` on every rank; returns its index.
  int64_t add(Group& group, int64_t bytes);
  const Window& window(int64_t bank) const { return *banks_[static_cast<size_t>(bank)].window; }
  // Marks the bank as taken until every copy of the result is gone.  The lease keeps its memory.
  std::shared_ptr<void> lease(int64_t bank);
  // The same where ranks write to the bank only after `stream` has been given the call that takes
  // it.  Tensors on the bank then cost nothing when they go, see OrderedLease.
  std::shared_ptr<void> lease_in_order(int64_t bank, comm::Launch launch, const Stream& stream);

 private:
  struct Bank {
    explicit Bank(std::shared_ptr<Window> made) : window(std::move(made)), ordered(window) {}
    bool is_taken() const { return !lease.expired() || ordered.is_taken(); }

    std::shared_ptr<Window> window;
    std::weak_ptr<void> lease;
    OrderedLease ordered;
    bool is_of_graphs = false;
  };
  std::vector<Bank> banks_;
};

}  // namespace moebius
