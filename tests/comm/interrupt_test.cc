// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Waits that the caller ends from outside.
#include "moebius/interrupt.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "moebius/error.h"
#include "moebius/group.h"
#include "tests/error_text.h"

namespace moebius::testing {
namespace {

constexpr std::chrono::milliseconds kLong{60'000};

class Interrupt : public ::testing::Test {
 protected:
  void TearDown() override { set_interrupt_check({}); }

  // What rank 0 throws in a barrier to which rank 1 never comes.
  std::string wait_for_nobody() {
    try {
      groups_[0]->barrier("meet");
    } catch (const CommError& error) {
      EXPECT_EQ(error.peer(), 0);
      return error.what();
    }
    return "";
  }

  std::vector<std::unique_ptr<Group>> groups_ = make_thread_groups(2, {.timeout = kLong});
};

TEST_F(Interrupt, EndsAWaitAndTellsTheOthers) {
  std::atomic<int> asked = 0;
  set_interrupt_check([&, waiting = std::this_thread::get_id()] {
    EXPECT_EQ(std::this_thread::get_id(), waiting);
    return ++asked == 3;
  });
  const auto begin = std::chrono::steady_clock::now();
  expect_mentions(wait_for_nobody(), "rank 0 was interrupted");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong / 4);
  EXPECT_EQ(asked, 3);
  expect_mentions(message_of<CommError>([&] { groups_[1]->barrier("meet"); }),
                  "rank 0 was interrupted");
}

TEST_F(Interrupt, EndsAWaitByAnException) {
  set_interrupt_check([]() -> bool { throw std::runtime_error("Ctrl-C"); });
  expect_mentions(wait_for_nobody(), "rank 0 was interrupted");
}

TEST_F(Interrupt, IsNotAskedAnyMore) {
  set_interrupt_check([] { return true; });
  set_interrupt_check({});
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    groups_[1]->barrier("meet");
  });
  groups_[0]->barrier("meet");
  late.join();
}

}  // namespace
}  // namespace moebius::testing
