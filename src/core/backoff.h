// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Backoff: what a thread does between two looks at the value it waits for.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace moebius {

inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins first, then yields, then sleeps for longer and longer.  With more threads than CPUs it does
// not spin, because the thread it waits for may need this CPU, and it sleeps longer, because each
// look costs a switch.
class Backoff {
 public:
  Backoff(int num_threads, int num_cpus)
      : spins_(num_threads <= num_cpus ? kSpins : 0),
        max_sleep_(kMaxSleep * std::clamp(num_threads / std::max(num_cpus, 1), 1, kMaxCrowding)) {}

  void pause() {
    if (spins_ > 0) {
      --spins_;
      cpu_relax();
    } else if (yields_ > 0) {
      --yields_;
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(sleep_);
      sleep_ = std::min(2 * sleep_, max_sleep_);
    }
  }

 private:
  static constexpr int kSpins = 1000;  // about 100 us, longer than a switch between two threads
  static constexpr int kYields = 50;
  static constexpr std::chrono::microseconds kFirstSleep{20};
  static constexpr std::chrono::microseconds kMaxSleep{200};
  static constexpr int kMaxCrowding = 10;

  int spins_;
  int yields_ = kYields;
  std::chrono::microseconds sleep_ = kFirstSleep;
  std::chrono::microseconds max_sleep_;
};

}  // namespace moebius
