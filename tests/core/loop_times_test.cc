// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/loop_times.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core/countdown.h"
#include "core/parallel.h"

namespace moebius {
namespace {

using std::chrono::milliseconds;

void pass(milliseconds time) {
  std::this_thread::sleep_for(time);
}

TEST(LoopTimes, PartsAddUpToTheLoop) {
  const Stream stream = Stream::cpu(2);
  const LoopClock clock;
  const auto begin = std::chrono::steady_clock::now();
  // One thread has the long task.  Whoever is done waits for it, or it came too late to begin.
  parallel_tasks(stream, 2, [](int64_t task, int) { pass(milliseconds(task == 0 ? 40 : 1)); });
  const auto whole = std::chrono::steady_clock::now() - begin;
  const LoopTimes times = clock.times();
  EXPECT_EQ(times.loops, 1);
  EXPECT_LE(times.total(), whole);
  EXPECT_GE(times.total(), milliseconds(40));
  EXPECT_GE(times.tasks, milliseconds(20));
  EXPECT_GE(times.start + times.end, milliseconds(15));
  EXPECT_EQ(times.stalled.count(), 0);
}

TEST(LoopTimes, TasksThatWaitForOthersAreStalled) {
  const Stream stream = Stream::cpu(2);
  const LoopClock clock;
  Countdown count(1);
  const std::atomic<bool> failed = false;
  std::atomic<bool> both = false;
  parallel_tasks(stream, 2, [&](int64_t task, int) {
    if (task == 0) {
      // The other thread may be late; then this one does both tasks and nobody waits.
      for (int i = 0; i < 1000 && !both; ++i) {
        pass(milliseconds(1));
      }
      pass(milliseconds(100));  // load may keep the other one from waiting for some of them
      count.count_down();
    } else {
      both = true;
      EXPECT_TRUE(count.await(failed));
    }
  });
  EXPECT_GE(clock.times().stalled, milliseconds(8));
}

TEST(LoopTimes, LoopsAreOnlyTimedWhileAClockExists) {
  const Stream stream = Stream::cpu(2);
  { const LoopClock clock; }
  EXPECT_EQ(LoopClock::current(), nullptr);
  parallel_tasks(stream, 4, [](int64_t, int) {});
  const LoopClock clock;
  EXPECT_EQ(clock.times().loops, 0);
  // A loop of one task runs on the caller and is none.
  parallel_tasks(stream, 1, [](int64_t, int) {});
  EXPECT_EQ(clock.times().loops, 0);
}

}  // namespace
}  // namespace moebius
