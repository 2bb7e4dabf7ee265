// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Nothing hangs among forked processes: when one misbehaves or is killed, every other reports it in
// time.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "tests/by_name.h"
#include "tests/comm/failure_cases.h"
#include "tests/error_text.h"

namespace moebius::testing {
namespace {

struct Outcome {
  std::vector<std::string> errors;  // per rank
  std::chrono::milliseconds took{};
  std::string thrown;
};

Outcome run_all(const ProcessGroupOptions& options, const std::function<void(Group&)>& body) {
  Outcome result;
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_process_ranks(options, body, &result.errors);
  } catch (const std::exception& error) {
    result.thrown = error.what();
  }
  result.took = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - begin);
  return result;
}

class ProcessFailureTest : public ::testing::TestWithParam<FailureCase> {};

TEST_P(ProcessFailureTest, IsReportedByEveryOtherRank) {
  const FailureCase& c = GetParam();
  for (const int num_ranks : {2, 4}) {
    for (const int guilty : {num_ranks - 1, 0}) {
      const Outcome seen = run_all({.num_ranks = num_ranks, .timeout = timeout_of(c, num_ranks)},
                                   [&](Group& group) { c.body(group, guilty); });
      ASSERT_EQ(seen.errors.size(), static_cast<size_t>(num_ranks));
      EXPECT_EQ(missing_from_all(seen.errors, c, guilty), "");
      EXPECT_NE(seen.thrown, "");
      // A rank that stalls first comes back, so the job takes longer than the reports.
      EXPECT_LT(seen.took, report_limit(c, num_ranks) + std::chrono::seconds(5));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ProcessFailureTest, ::testing::ValuesIn(failure_cases()), by_name);

class ProcessDeathTest : public ::testing::TestWithParam<DeadlyCase> {};

// The parent sees a process die, so no rank waits for the deadline.
TEST_P(ProcessDeathTest, IsToldToTheOthersAtOnce) {
  for (const int num_ranks : {2, 4}) {
    for (const int guilty : {num_ranks - 1, 0}) {
      const Outcome seen = run_all({.num_ranks = num_ranks, .timeout = kLongTimeout},
                                   [&](Group& group) { GetParam().body(group, guilty); });
      const std::string killed = fmt::format("rank {} was killed by signal {}", guilty, SIGKILL);
      for (const std::string& error : seen.errors) {
        expect_mentions(error, killed);
      }
      expect_mentions(seen.thrown, killed);
      EXPECT_LT(seen.took, kLongTimeout / 4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases,
                         ProcessDeathTest,
                         ::testing::ValuesIn(deadly_cases()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(ProcessFailure, WhoDoesNotEndIsKilled) {
  const Outcome seen =
      run_all({.num_ranks = 2, .timeout = std::chrono::milliseconds(200)}, [](Group& group) {
        if (group.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::hours(1));
        }
        throw Error("out of memory");
      });
  EXPECT_EQ(seen.errors[0], "out of memory");
  expect_mentions(seen.errors[1], "rank 1 was killed");
  EXPECT_LT(seen.took, std::chrono::seconds(20));
}

// The stopped rank has shown that it waits for another.  It is blamed nevertheless.
TEST(ProcessFailure, WhoIsStoppedWhileItWaitsIsNamed) {
  const Outcome seen = run_all({.num_ranks = 3, .timeout = std::chrono::milliseconds(1000)},
                               [](Group& group) { wait_in_a_circle(group, 2); });
  for (const size_t rank : {0u, 1u}) {
    expect_mentions(seen.errors[rank], {"rank 2 did not come", "its process is stopped"});
  }
}

TEST(ProcessFailure, WhoExitsInTheMiddleIsMissedAtOnce) {
  for (const int num_ranks : {1, 2}) {
    const Outcome seen =
        run_all({.num_ranks = num_ranks, .timeout = kLongTimeout}, [](Group& group) {
          if (group.rank() == group.size() - 1) {
            _exit(0);
          }
          group.barrier("layout");
        });
    const std::string ended = fmt::format("rank {} ended with status 0", num_ranks - 1);
    EXPECT_EQ(seen.thrown, ended);
    for (const std::string& error : seen.errors) {
      expect_mentions(error, ended);
    }
    EXPECT_LT(seen.took, kLongTimeout / 4);
  }
}

TEST(ProcessFailure, OptionsAreCheckedBeforeAnyProcessStarts) {
  expect_mentions(run_all({.num_ranks = 0}, [](Group&) {}).thrown, "num_ranks");
  expect_mentions(run_all({.num_ranks = 2, .devices = {Device::cuda(0)}}, [](Group&) {}).thrown,
                  "devices of the ranks is 1, expected 2");
}

}  // namespace
}  // namespace moebius::testing
