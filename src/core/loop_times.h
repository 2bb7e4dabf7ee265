// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LoopClock tells benchmarks where the time of the parallel loops of a CPU goes.  Of a loop's time
// each thread spends a part until it begins its first task, a part at tasks, and a part waiting for
// the loop to end.  The parts are means over the threads of a loop, so they add up to its time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace moebius {

struct LoopTimes {
  using Time = std::chrono::nanoseconds;

  int64_t loops = 0;
  Time start{0};    // until threads begin
  Time tasks{0};    // at tasks, without what is stalled
  Time stalled{0};  // in tasks, waiting for other tasks (core/countdown.h)
  Time end{0};      // until all threads have ended

  Time total() const { return start + tasks + stalled + end; }
};

// Adds up loops of the process from its construction on.  Only one may exist at a time.
// REQUIRES: no loop is under way when it is made, asked or destroyed.
class LoopClock {
 public:
  LoopClock();
  ~LoopClock();
  LoopClock(const LoopClock&) = delete;
  LoopClock& operator=(const LoopClock&) = delete;

  LoopTimes times() const { return times_; }

  // Null while nobody measures.
  static LoopClock* current() { return current_.load(std::memory_order_relaxed); }

  // One loop, from its construction to end().
  class Loop {
   public:
    explicit Loop(int num_threads);
    // A thread has begun, and has ended, its tasks.
    void thread_began();
    void thread_ended();
    // Adds the loop to `clock`.  REQUIRES: all threads that began have ended.
    void end(LoopClock& clock);

   private:
    using Clock = std::chrono::steady_clock;
    int64_t since_start() const { return (Clock::now() - start_).count(); }

    int num_threads_;
    Clock::time_point start_;
    std::atomic<int> num_began_{0};
    std::atomic<int64_t> began_ns_{0};  // sums over threads, from start_ on
    std::atomic<int64_t> ended_ns_{0};
  };

  // Called by a task that has waited for others.
  void add_stalled(std::chrono::nanoseconds time) {
    stalled_ns_.fetch_add(time.count(), std::memory_order_relaxed);
  }

 private:
  static std::atomic<LoopClock*> current_;

  LoopTimes times_;
  std::atomic<int64_t> stalled_ns_{0};  // of the loop under way, a sum over threads
};

}  // namespace moebius
