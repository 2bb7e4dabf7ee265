// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/caller_function.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

namespace moebius {
namespace {

using Function = std::function<void()>;

void run(const Function& function) {
  function();
}

TEST(CallerFunction, IsReplacedWhenNoOtherThreadIsInIt) {
  CallerFunction<Function> slot;
  std::atomic<bool> is_inside{false};
  std::atomic<bool> may_leave{false};
  std::atomic<bool> has_left{false};
  slot.replace([&] {
    is_inside = true;
    while (!may_leave) {
      std::this_thread::yield();
    }
    has_left = true;
  });
  std::thread caller([&] { EXPECT_TRUE(slot.call(run)); });
  while (!is_inside) {
    std::this_thread::yield();
  }
  std::atomic<bool> is_replaced{false};
  std::thread replacer([&] {
    slot.replace({});
    EXPECT_TRUE(has_left);
    is_replaced = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(is_replaced);
  may_leave = true;
  caller.join();
  replacer.join();
  EXPECT_FALSE(slot.call(run)) << "there is none";
}

TEST(CallerFunction, MayReplaceItselfAndIsNotCalledAgainFromWithin) {
  CallerFunction<Function> slot;
  int num_calls = 0;
  slot.replace([&] {
    ++num_calls;
    EXPECT_FALSE(slot.call(run));
    slot.replace([&] { num_calls += 10; });
  });
  EXPECT_TRUE(slot.call(run));
  EXPECT_TRUE(slot.call(run));
  EXPECT_EQ(num_calls, 11);
}

}  // namespace
}  // namespace moebius
