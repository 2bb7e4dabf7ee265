// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/high_throughput/bank.h"

#include "core/deferred_release.h"

namespace moebius {

int64_t BankPool::pick() const {
  release_finished();
  int64_t best = kNone;
  for (size_t i = 0; i < banks_.size(); ++i) {
    const auto bank = static_cast<int64_t>(i);
    if (banks_[i].lease.expired() && (best == kNone || bytes(bank) > bytes(best))) {
      best = bank;
    }
  }
  return best;
}

int64_t BankPool::bytes() const {
  int64_t total = 0;
  for (const Bank& bank : banks_) {
    total += bank.window->bytes();
  }
  return total;
}

int64_t BankPool::add(Group& group, int64_t bytes) {
  banks_.push_back({group.make_window("grow a receive bank", roomy(bytes)), {}});
  return static_cast<int64_t>(banks_.size()) - 1;
}

std::shared_ptr<void> BankPool::lease(int64_t bank) {
  Bank& b = banks_[static_cast<size_t>(bank)];
  // The copy of the window in the deleter keeps the memory.
  std::shared_ptr<void> lease(b.window.get(), [window = b.window](void*) {});
  b.lease = lease;
  return lease;
}

}  // namespace moebius
