// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks on threads that the caller has: what happens when one never calls, ends or leaves.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/cpu_sets.h"
#include "moebius/group.h"
#include "tests/error_text.h"

namespace moebius::testing {
namespace {

using std::chrono::milliseconds;
using Groups = std::vector<std::unique_ptr<Group>>;

constexpr milliseconds kShort{300};
constexpr milliseconds kLong{60'000};

// What a barrier of each rank throws, each on a thread of its own; ranks of `absent` make no call.
std::vector<std::string> barriers(const Groups& groups, const std::vector<size_t>& absent) {
  std::vector<std::string> messages(groups.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < groups.size(); ++rank) {
    if (std::find(absent.begin(), absent.end(), rank) == absent.end()) {
      threads.emplace_back([&, rank] {
        messages[rank] = message_of<Error>([&] { groups[rank]->barrier("meet"); });
      });
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return messages;
}

TEST(OwnThreads, ARankThatNeverCallsIsNamedAtTheDeadline) {
  const Groups groups = make_thread_groups(3, {.timeout = kShort});
  const auto messages = barriers(groups, {1});
  for (const size_t rank : {0u, 2u}) {
    expect_mentions(messages[rank], "rank 1 did not come within 300 ms");
  }
}

TEST(OwnThreads, ARankThatIsGoneIsNamedAtOnce) {
  Groups groups = make_thread_groups(3, {.timeout = kLong});
  // Its thread ends, and its group with it.
  std::thread([group = std::move(groups[1])] { EXPECT_EQ(group->rank(), 1); }).join();
  const auto begin = std::chrono::steady_clock::now();
  const auto messages = barriers(groups, {1});
  for (const size_t rank : {0u, 2u}) {
    expect_mentions(messages[rank], "rank 1 has left; expected at epoch 1");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong / 4);
}

TEST(OwnThreads, ARankTellsWhyItGivesUp) {
  const Groups groups = make_thread_groups(2, {.timeout = kLong});
  groups[1]->abort("no more requests");
  expect_mentions(barriers(groups, {1})[0], "rank 1 failed: no more requests");
}

TEST(OwnThreads, GroupsMayBeDestroyedInAnyOrderOnAnyThread) {
  for (const std::vector<size_t>& order :
       {std::vector<size_t>{0, 1, 2}, std::vector<size_t>{2, 0, 1}, std::vector<size_t>{1, 2, 0}}) {
    Groups groups = make_thread_groups(3, {.timeout = kLong});
    std::vector<std::unique_ptr<Window>> windows(3);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        windows[rank] = groups[rank]->make_window("window", 64);
        groups[rank]->barrier("made");
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (const size_t rank : order) {
      std::thread([group = std::move(groups[rank])] {}).join();
      EXPECT_EQ(windows[0]->peer(static_cast<int>(rank))[0], std::byte{0});  // still mapped
    }
  }
  make_thread_groups(4);  // groups that were never used
}

TEST(OwnThreads, AThreadMayServeRanksOfSeveralGroupsAndComeAndGo) {
  const Groups first = make_thread_groups(2, {.timeout = kLong});
  const Groups second = make_thread_groups(2, {.timeout = kLong});
  for (int round = 0; round < 3; ++round) {  // with new threads in each round
    EXPECT_EQ(barriers(first, {}), std::vector<std::string>(2, "no error"));
    EXPECT_EQ(barriers(second, {}), std::vector<std::string>(2, "no error"));
  }
  EXPECT_EQ(first[0]->epoch(), 3);
}

TEST(OwnThreads, AreNotPinnedUnlessTheyAsk) {
  const auto before = usable_cpus();
  const Groups groups = make_thread_groups(2);
  barriers(groups, {});
  EXPECT_EQ(usable_cpus(), before);
  const auto cpus_when_pinned = [](int rank, int num_ranks) {
    std::vector<int> cpus;
    std::thread([&] {
      pin_rank_thread(rank, num_ranks);
      cpus = usable_cpus();
    }).join();
    return cpus;
  };
  const int num_cpus = static_cast<int>(before.size());
  std::vector<int> all = cpus_when_pinned(0, 2);
  const std::vector<int> others = cpus_when_pinned(1, 2);
  if (num_cpus >= 2) {
    all.insert(all.end(), others.begin(), others.end());
  }
  EXPECT_EQ(all, before);
  EXPECT_EQ(cpus_when_pinned(0, num_cpus + 1), before);
}

TEST(OwnThreads, RefuseImpossibleOptions) {
  expect_mentions(message_of<InvalidArgument>([] { make_thread_groups(0); }), "num_ranks is 0");
  expect_mentions(
      message_of<InvalidArgument>([] { make_thread_groups(2, {.ranks_per_node = -1}); }),
      "ranks_per_node is -1");
  expect_mentions(
      message_of<InvalidArgument>([] { make_thread_groups(2, {.devices = {Device::cuda(0)}}); }),
      "make_nccl_group");
  EXPECT_THROW(pin_rank_thread(2, 2), InvalidArgument);
}

}  // namespace
}  // namespace moebius::testing
