// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/loop_times.h"

#include <cassert>

namespace moebius {

constinit std::atomic<LoopClock*> LoopClock::current_{nullptr};

LoopClock::LoopClock() {
  assert(current() == nullptr);
  current_.store(this, std::memory_order_relaxed);
}

LoopClock::~LoopClock() {
  current_.store(nullptr, std::memory_order_relaxed);
}

LoopClock::Loop::Loop(int num_threads) : num_threads_(num_threads), start_(Clock::now()) {}

void LoopClock::Loop::thread_began() {
  num_began_.fetch_add(1, std::memory_order_relaxed);
  began_ns_.fetch_add(since_start(), std::memory_order_relaxed);
}

void LoopClock::Loop::thread_ended() {
  ended_ns_.fetch_add(since_start(), std::memory_order_relaxed);
}

void LoopClock::Loop::end(LoopClock& clock) {
  const int64_t whole = since_start();
  // A thread that came too late to begin has only waited for its start.
  const int64_t late = (num_threads_ - num_began_.load(std::memory_order_relaxed)) * whole;
  const int64_t began = began_ns_.load(std::memory_order_relaxed);
  const int64_t ended = ended_ns_.load(std::memory_order_relaxed);
  const int64_t stalled = clock.stalled_ns_.exchange(0, std::memory_order_relaxed);
  const int64_t start_mean = (began + late) / num_threads_;
  const int64_t busy_mean = (ended - began) / num_threads_;
  const int64_t stalled_mean = stalled / num_threads_;
  LoopTimes& times = clock.times_;
  ++times.loops;
  times.start += LoopTimes::Time(start_mean);
  times.tasks += LoopTimes::Time(busy_mean - stalled_mean);
  times.stalled += LoopTimes::Time(stalled_mean);
  times.end += LoopTimes::Time(whole - start_mean - busy_mean);
}

}  // namespace moebius
