// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What tasks of a parallel loop (core/parallel.h) wait for that are done by others.  Those must
// have been taken earlier: then somebody is at them, or has failed.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/backoff.h"

namespace moebius {

class Countdown {
 public:
  explicit Countdown(int64_t count) : left_(count) {}

  // True for whoever comes last, who sees what all others wrote before; so do those who awaited.
  bool count_down() { return left_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

  // Until `count` have counted down, or `failed` is set: then false.
  bool await(const std::atomic<bool>& failed) const {
    Backoff backoff(1, 1);
    while (left_.load(std::memory_order_acquire) > 0) {  // pairs with count_down
      if (failed.load(std::memory_order_relaxed)) {
        return false;
      }
      backoff.pause();
    }
    return true;
  }

 private:
  std::atomic<int64_t> left_;
};

}  // namespace moebius
