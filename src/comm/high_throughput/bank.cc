// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/high_throughput/bank.h"

#include "core/deferred_release.h"

namespace moebius {

int64_t BankPool::pick(comm::Launch launch) const {
  release_finished();
  int64_t best = kNone;
  const auto is_better = [&](int64_t bank) {
    if (best == kNone || bytes(bank) != bytes(best)) {
      return bytes(bank) > bytes(best);
    }
    return banks_[static_cast<size_t>(bank)].is_of_graphs &&
           !banks_[static_cast<size_t>(best)].is_of_graphs;
  };
  for (size_t i = 0; i < banks_.size(); ++i) {
    const Bank& bank = banks_[i];
    if (bank.is_taken() || !is_better(static_cast<int64_t>(i))) {
      continue;
    }
    // Whoever launches graphs orders what they do with their banks.
    const bool may_have = launch == comm::Launch::kCaptured
                              ? bank.is_of_graphs || bank.ordered.is_done()
                              : !bank.is_of_graphs;
    if (may_have) {
      best = static_cast<int64_t>(i);
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
  banks_.emplace_back(group.make_window("grow a receive bank", roomy(bytes)));
  return static_cast<int64_t>(banks_.size()) - 1;
}

std::shared_ptr<void> BankPool::lease_in_order(int64_t bank,
                                               comm::Launch launch,
                                               const Stream& stream) {
  Bank& b = banks_[static_cast<size_t>(bank)];
  b.is_of_graphs |= launch == comm::Launch::kCaptured;
  return b.ordered.lend(stream);
}

std::shared_ptr<void> BankPool::lease(int64_t bank) {
  Bank& b = banks_[static_cast<size_t>(bank)];
  // The copy of the window in the deleter keeps the memory.
  std::shared_ptr<void> lease(b.window.get(), [window = b.window](void*) {});
  b.lease = lease;
  return lease;
}

}  // namespace moebius
