// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Nothing hangs among rank threads: when one misbehaves, every other reports it in time.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/comm/failure_cases.h"
#include "tests/error_text.h"

namespace {
// How many more allocations of this thread succeed before one fails; -1: all succeed.
thread_local int allocations_left = -1;
}  // namespace

// Why it is not inline: gcc would warn that free() takes memory of new.
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) {
    throw std::bad_alloc();
  }
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace moebius::testing {
namespace {

using Clock = std::chrono::steady_clock;

struct Outcome {
  std::vector<std::string> errors;              // per rank
  std::vector<std::chrono::milliseconds> took;  // per rank
  std::string thrown;                           // by run_thread_ranks
};

Outcome run_all(const ThreadGroupOptions& options, const std::function<void(Group&)>& body) {
  Outcome result;
  result.took.resize(static_cast<size_t>(options.num_ranks));
  const auto timed_body = [&](Group& group) {
    struct Timer {
      std::chrono::milliseconds& took;
      Clock::time_point begin = Clock::now();
      ~Timer() {
        took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
      }
    } const timer{result.took[static_cast<size_t>(group.rank())]};
    body(group);
  };
  try {
    run_thread_ranks(options, timed_body, &result.errors);
  } catch (const std::exception& error) {
    result.thrown = error.what();
  }
  return result;
}

class ThreadFailureTest : public ::testing::TestWithParam<std::tuple<FailureCase, int>> {};

TEST_P(ThreadFailureTest, IsReportedByEveryOtherRank) {
  const auto& [c, num_ranks] = GetParam();
  for (const int guilty : {num_ranks - 1, 0}) {
    const Outcome seen = run_all({.num_ranks = num_ranks, .timeout = timeout_of(c, num_ranks)},
                                 [&, &failure = c](Group& group) { failure.body(group, guilty); });
    ASSERT_EQ(seen.errors.size(), static_cast<size_t>(num_ranks));
    EXPECT_EQ(missing_from_all(seen.errors, c, guilty), "");
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (rank != guilty) {
        EXPECT_LT(seen.took[static_cast<size_t>(rank)], report_limit(c, num_ranks));
      }
    }
    EXPECT_NE(seen.thrown, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Cases,
                         ThreadFailureTest,
                         ::testing::Combine(::testing::ValuesIn(failure_cases()),
                                            ::testing::Values(2, 3, 4, 8, 64)),
                         [](const auto& param) {
                           return std::get<0>(param.param).name + "_R" +
                                  std::to_string(std::get<1>(param.param));
                         });

TEST(ThreadFailure, TheFirstOriginalExceptionIsRethrown) {
  struct Special : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  for (int repeat = 0; repeat < 50; ++repeat) {
    try {
      run_thread_ranks({.num_ranks = 4}, [](Group& group) {
        group.barrier("start");
        if (group.rank() == 2) {
          throw Special("special");
        }
        group.barrier("end");
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Special& error) {
      EXPECT_STREQ(error.what(), "special");
    }
  }
  EXPECT_THROW(run_thread_ranks({.num_ranks = 3}, [](Group&) { throw 7; }), int);
}

// Ranks 1 and 3 are a sub-group, in which rank 3 fails.
TEST(ThreadFailure, AFailureOfASubGroupStaysThereAndSaysWhoseNumbersItNames) {
  run_thread_ranks({.num_ranks = 4, .timeout = kLongTimeout}, [](Group& group) {
    const auto part = group.split(group.rank() % 2);
    if (group.rank() == 3) {
      part->abort("no more tokens");
    } else if (group.rank() == 1) {
      try {
        part->barrier("dispatch");
        ADD_FAILURE() << "the barrier did not mind";
      } catch (const CommError& error) {
        EXPECT_EQ(error.rank(), 0);
        EXPECT_EQ(error.peer(), 1);
        EXPECT_STREQ(
            error.what(),
            "rank 0: dispatch, epoch 1: rank 1 failed: no more tokens (in a sub-group: rank "
            "0 is rank 1, rank 1 is rank 3 of the group that was split)");
      }
    } else {
      part->barrier("dispatch");
    }
    group.barrier("the whole goes on");
  });
}

// What a rank throws while the others wait for it in a sub-group ends them, and is what is
// rethrown.
TEST(ThreadFailure, AnExceptionEndsSubGroupsAndIsRethrown) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<std::string> errors;
    try {
      run_thread_ranks(
          {.num_ranks = 4, .timeout = kLongTimeout},
          [](Group& group) {
            const auto part = group.split(0);
            part->barrier("layout");
            if (group.rank() == 2) {
              throw Error("expert 7 is on fire");
            }
            part->barrier("dispatch");
          },
          &errors);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "expert 7 is on fire");
    }
    expect_mentions(errors[0], "rank 2 has left; expected at epoch 2");
  }
}

TEST(ThreadFailure, ABrokenGroupThrowsTheSameErrorAgain) {
  const Outcome seen = run_all({.num_ranks = 2, .timeout = short_timeout(3)}, [](Group& group) {
    if (group.rank() == 1) {
      group.abort("no reason");
      EXPECT_THROW(group.barrier("after"), CommError);
      return;
    }
    std::vector<std::string> messages;
    for (int i = 0; i < 3; ++i) {
      try {
        group.barrier("b" + std::to_string(i));
      } catch (const CommError& error) {
        EXPECT_EQ(error.rank(), 0);
        EXPECT_EQ(error.peer(), 1);
        messages.push_back(error.what());
      }
    }
    ASSERT_EQ(messages.size(), 3u);
    EXPECT_EQ(messages[1], messages[0]);
    EXPECT_EQ(messages[2], messages[0]);
    expect_mentions(messages[0], "no reason");
  });
  EXPECT_EQ(seen.thrown, "");
}

// The last rank runs out of memory, in each round at another place.
void expect_no_hang_without_memory(int num_ranks, int64_t bytes, bool with_reader) {
  constexpr int kPlaces = 12;  // more than an exchange allocates
  for (int place = 0; place < kPlaces; ++place) {
    SCOPED_TRACE(place);
    const auto timeout = short_timeout(num_ranks);
    const Outcome seen = run_all({.num_ranks = num_ranks, .timeout = timeout}, [&](Group& group) {
      std::vector<std::byte> sent(static_cast<size_t>(bytes));
      std::vector<std::byte> received(sent.size() * static_cast<size_t>(num_ranks));
      const auto [sends, recvs] =
          gather_blocks(num_ranks, sent.data(), bytes, with_reader ? nullptr : received.data());
      const BlockReader reader = [](std::span<const std::byte* const>) {};
      const auto exchange =
          group.start_exchange("show", sends, recvs, with_reader ? reader : BlockReader());
      if (group.rank() == num_ranks - 1) {
        allocations_left = place;
      }
      exchange->wait();
      allocations_left = -1;
    });
    for (const auto took : seen.took) {
      EXPECT_LT(took, 10 * timeout);
    }
  }
}

TEST(ThreadFailure, WhoRunsOutOfMemoryWhileItReadsKeepsNobody) {
  expect_no_hang_without_memory(3, 64, true);
  expect_no_hang_without_memory(1, int64_t{5} << 20, false);  // copied by all threads
}

TEST(ThreadFailure, WhoOnlyWaitsForALaggardIsNotBlamed) {
  // Rank 2 stalls; rank 1 waits for it, rank 0 for rank 1.  Rank 0's deadline comes first.
  std::atomic<int> flag{0};
  const Outcome seen = run_all({.num_ranks = 3, .timeout = short_timeout(3)}, [&](Group& group) {
    if (group.rank() == 2) {
      std::this_thread::sleep_for(4 * group.timeout());
      return;
    }
    if (group.rank() == 1) {
      std::this_thread::sleep_for(group.timeout() / 3);
    }
    group.wait_until(
        "chain", group.rank() + 1, [&] { return flag == 1; }, [] { return "expected flag 1"; });
  });
  expect_mentions(seen.errors[0], "rank 2 did not come within 500 ms (rank 1 waits for it)");
  expect_mentions(seen.errors[1], "rank 2");
}

TEST(ThreadFailure, SeveralLaggardsAreAllNamed) {
  const Outcome seen = run_all({.num_ranks = 4, .timeout = short_timeout(3)}, [](Group& group) {
    if (group.rank() % 2 == 1) {
      std::this_thread::sleep_for(4 * group.timeout());
    }
    group.barrier("dispatch");
  });
  for (const int rank : {0, 2}) {
    expect_mentions(seen.errors[static_cast<size_t>(rank)],
                    {"rank 1 did not come", "rank 3 did not come"});
  }
}

TEST(ThreadFailure, MemoryOfARankThatUnwindsIsNotReadAnyMore) {
  // Rank 0 poisons and frees what it sends as soon as its exchange is abandoned.  The sanitizers of
  // addresses and threads would find a later copy, and here the poison shows it.
  for (int repeat = 0; repeat < 30; ++repeat) {
    constexpr size_t kBytes = 1 << 20;
    run_all({.num_ranks = 4}, [&](Group& group) {
      auto out = std::make_unique<std::vector<std::byte>>(kBytes, std::byte{1});
      std::vector<std::byte> in(kBytes * 4);
      const auto [sends, recvs] = gather_blocks(4, out->data(), kBytes, in.data());
      auto exchange = group.start_exchange("dispatch", sends, recvs);
      if (group.rank() == 0) {
        exchange.reset();
        std::fill(out->begin(), out->end(), std::byte{2});
        out.reset();
        throw Error("gone");
      }
      try {
        exchange->wait();
      } catch (const CommError&) {
        EXPECT_EQ(std::count(in.begin(), in.end(), std::byte{2}), 0);
        throw;
      }
    });
  }
}

TEST(ThreadFailure, TheOthersGoOnWithoutARankGivenUp) {
  constexpr int kRanks = 4;
  constexpr int kDead = 2;
  std::atomic<int> finished{0};
  const Outcome seen = run_all({.num_ranks = kRanks, .timeout = kLongTimeout}, [&](Group& group) {
    const auto window = group.make_window("signals", kRanks * sizeof(int64_t));
    signal_all(group, *window, 1);
    if (group.rank() == kDead) {
      throw Error("out of memory");
    }
    try {
      signal_all(group, *window, 2);
      ADD_FAILURE() << "the dead rank gave a signal";
    } catch (const CommError& error) {
      EXPECT_EQ(error.peer(), kDead) << error.what();
    }
    group.set_dead(kDead, true);
    for (int64_t number = 2; number < 200; ++number) {
      signal_all(group, *window, number);
    }
    EXPECT_THROW(group.barrier("needs all"), CommError);
    ++finished;
  });
  EXPECT_EQ(finished, kRanks - 1);
  EXPECT_EQ(seen.thrown, "out of memory");
}

// An excluded rank still runs.  It misses a rank that no longer talks to it, tells so, and later
// aborts.  Neither may break the group of the others.
TEST(ThreadFailure, WhatARankGivenUpTellsEndsNobody) {
  constexpr int kDead = 2;
  std::atomic<int> stage{0};  // 1: the dead rank has told a failure; 2: it has aborted
  std::atomic<int> num_live{0};
  const auto wait_for = [](const std::atomic<int>& what, int wanted) {
    const auto limit = Clock::now() + kLongTimeout / 4;
    while (what < wanted && Clock::now() < limit) {
      std::this_thread::yield();
    }
  };
  const Outcome seen = run_all({.num_ranks = 3, .timeout = short_timeout(3)}, [&](Group& group) {
    const auto window = group.make_window("signals", 2 * sizeof(int64_t));
    const auto wait_for_other = [&](int64_t number) {
      const int other = 1 - group.rank();
      window->signal(other, group.rank() * 8, number);
      const auto word = word_of(*window, group.rank(), other);
      group.wait_until(
          "round", other, [&] { return word.load(std::memory_order_acquire) >= number; },
          [] { return "expected a signal"; });
    };
    if (group.rank() == kDead) {
      EXPECT_THROW(group.wait_until(
                       "round", 0, [] { return false; }, [] { return "expected a signal"; }),
                   CommError);
      stage = 1;
      wait_for(num_live, 2);
      group.abort("still here");
      stage = 2;
      return;
    }
    wait_for(stage, 1);
    try {
      group.wait_until(
          "round", kDead, [] { return false; }, [] { return "expected a signal"; });
      ADD_FAILURE() << "rank " << group.rank() << " was told nothing";
    } catch (const CommError& error) {
      EXPECT_EQ(error.peer(), 0) << error.what();
    }
    group.set_dead(kDead, true);
    wait_for_other(1);
    ++num_live;
    wait_for(stage, 2);
    for (int64_t number = 2; number < 50; ++number) {
      wait_for_other(number);
    }
  });
  EXPECT_EQ(seen.thrown, "");
}

}  // namespace
}  // namespace moebius::testing
