// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/threads/slow_link.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace moebius::comm {

namespace {

constexpr int64_t kSmallBytes = 4096;

Due now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

}  // namespace

bool is_due(Due due) {
  return due.count() == 0 || now() >= due;
}

DepartureTimes::DepartureTimes(const SlowLink& link, int num_ranks)
    : speed_(link), links_(static_cast<size_t>(num_ranks)) {}

void DepartureTimes::add(int peer, int64_t bytes) {
  links_[static_cast<size_t>(peer)].bytes += bytes;
}

Due DepartureTimes::next(int peer) {
  Link& link = links_[static_cast<size_t>(peer)];
  const int64_t bytes = std::exchange(link.bytes, 0);
  Due left = now();
  if (speed_.bytes_per_second > 0) {
    const bool is_large = bytes > kSmallBytes;
    left = is_large ? std::max(left, link.free) : left;
    left += std::chrono::duration_cast<Due>(std::chrono::duration<double>(
        static_cast<double>(bytes) / static_cast<double>(speed_.bytes_per_second)));
    link.free = is_large ? left : link.free;
  }
  return left + speed_.latency;
}

void LateSignals::add(Signal signal) {
  const std::lock_guard lock(mutex_);
  signals_.push_back(std::move(signal));
}

void LateSignals::store_due() {
  const std::lock_guard lock(mutex_);
  std::erase_if(signals_, [](const Signal& signal) {
    if (!is_due(signal.due)) {
      return false;
    }
    // pairs with ready() of this rank's wait_until, which is called after this.
    std::atomic_ref(*signal.word).store(signal.value, std::memory_order_release);
    return true;
  });
}

}  // namespace moebius::comm
