// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Countdown lets tasks of a parallel loop (core/parallel.h) wait for other tasks of the loop.
// REQUIRES: the tasks that are waited for have lower numbers.  Then they were handed out earlier,
// so a thread is working on each of them or has failed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/backoff.h"
#include "core/loop_times.h"

namespace moebius {

class Countdown {
 public:
  explicit Countdown(int64_t count) : left_(count) {}

  // Returns true in the last of the calls.  That caller, and every thread whose await() returns
  // true, sees what all callers wrote before.
  bool count_down() { return left_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

  // Waits until count_down() has been called `count` times, and returns true.  Returns false when
  // `failed` is set before that.
  bool await(const std::atomic<bool>& failed) const {
    if (is_over()) {
      return true;
    }
    LoopClock* const clock = LoopClock::current();
    if (clock == nullptr) {
      return wait(failed);
    }
    const auto begin = std::chrono::steady_clock::now();
    const bool is_done = wait(failed);
    clock->add_stalled(std::chrono::steady_clock::now() - begin);
    return is_done;
  }

 private:
  bool is_over() const {
    return left_.load(std::memory_order_acquire) <= 0;  // pairs with count_down
  }
  bool wait(const std::atomic<bool>& failed) const {
    Backoff backoff(1, 1);
    while (!is_over()) {
      if (failed.load(std::memory_order_relaxed)) {
        return false;
      }
      backoff.pause();
    }
    return true;
  }

  std::atomic<int64_t> left_;
};

}  // namespace moebius
