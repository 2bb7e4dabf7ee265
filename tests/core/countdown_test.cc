// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/countdown.h"

#include <gtest/gtest.h>

#include <thread>

namespace moebius {
namespace {

// The plain variables are for the thread sanitizer, which reports a race if the order is too weak.
TEST(Countdown, TheLastAndWaitersSeeWhatAllWrote) {
  const std::atomic<bool> failed = false;
  for (int round = 0; round < 500; ++round) {
    Countdown count(2);
    int first = 0;
    int second = 0;
    int seen_by_last = 0;
    int seen_by_waiter = 0;
    bool went_on = false;
    const auto write = [&](int& own) {
      own = 1;
      if (count.count_down()) {
        seen_by_last = first + second;
      }
    };
    std::thread waiter([&] {
      went_on = count.await(failed);
      seen_by_waiter = first + second;
    });
    std::thread other([&] { write(first); });
    write(second);
    other.join();
    waiter.join();
    ASSERT_TRUE(went_on);
    ASSERT_EQ(seen_by_last, 2);
    ASSERT_EQ(seen_by_waiter, 2);
  }
}

TEST(Countdown, NobodyWaitsForWhoFailed) {
  std::atomic<bool> failed = false;
  const Countdown count(1);
  bool went_on = true;
  std::thread waiter([&] { went_on = count.await(failed); });
  failed = true;
  waiter.join();
  EXPECT_FALSE(went_on);
}

}  // namespace
}  // namespace moebius
