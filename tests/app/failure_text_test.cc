// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Whatever error the ranks of a job meet, one of them reports it.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "app/commands.h"
#include "app/failure.h"
#include "moebius/error.h"

namespace moebius::app {
namespace {

// The text that failing ranks print, and the exit code that all of them must have.
struct Job {
  std::string said;
  int exit_code = -1;
};

Job fail_ranks(int num_ranks, const std::function<void(int rank)>& fail) {
  Job job;
  std::vector<int> codes(static_cast<size_t>(num_ranks), -1);
  ThreadGroupOptions options;
  options.num_ranks = num_ranks;
  testing::internal::CaptureStderr();
  run_thread_ranks(options, [&](Group& group) {
    try {
      fail(group.rank());
    } catch (const std::exception& error) {
      try {
        fail_job(group, error);
      } catch (const Reported& reported) {
        codes[static_cast<size_t>(group.rank())] = reported.exit_code;
      }
    }
  });
  job.said = testing::internal::GetCapturedStderr();
  job.exit_code = codes[0];
  EXPECT_EQ(codes, std::vector<int>(codes.size(), codes[0]));
  return job;
}

Job meet(int num_ranks, int guilty, const std::string& what) {
  return fail_ranks(num_ranks, [&](int rank) {
    throw CommError("rank " + std::to_string(rank) + ": dispatch, call 3: " + what, rank, guilty);
  });
}

TEST(FailJob, OneRankSpeaksForAll) {
  for (const int num_ranks : {1, 2, 4}) {
    for (const char* what :
         {"rank 0 has no room for all its rows", "rank 0 failed", "rank 0 failed: out of memory",
          "the exchange between GPUs did not end within 20 ms and was given up"}) {
      const Job job = meet(num_ranks, 0, what);
      EXPECT_EQ(job.said, "moebius: rank 0: dispatch, call 3: " + std::string(what) + "\n");
      EXPECT_EQ(job.exit_code, kRunFailed);
    }
  }
  EXPECT_EQ(meet(3, 2, "rank 2 did not come within 20 ms").said,
            "moebius: rank 0: dispatch, call 3: rank 2 did not come within 20 ms\n");
}

// Rank 1 reports even if rank 0 arrives after all.
TEST(FailJob, TheNextOneSpeaksWhereTheFirstIsMissed) {
  for (const char* what : {"rank 0 did not come within 20 ms, expected at call 3",
                           "rank 0 has left; expected at call 3"}) {
    EXPECT_EQ(meet(3, 0, what).said,
              "moebius: rank 1: dispatch, call 3: " + std::string(what) + "\n");
  }
}

// A place in the source only helps callers of the library, so neither the report nor the other
// ranks have it.
TEST(FailJob, PlacesAreNotTold) {
  const Job alone = fail_ranks(2, [](int) { expect_eq(3, 4, "tokens"); });
  EXPECT_EQ(alone.said, "moebius: tokens is 3, expected 4\n");
  EXPECT_EQ(alone.exit_code, kBadInput);
  ThreadGroupOptions options;
  options.num_ranks = 2;
  testing::internal::CaptureStderr();
  run_thread_ranks(options, [](Group& group) {
    try {
      if (group.rank() == 1) {
        expect_eq(3, 4, "tokens");
      }
      group.barrier("together");
    } catch (const std::exception& error) {
      EXPECT_THROW(fail_job(group, error), Reported);
    }
  });
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(said.starts_with("moebius: rank 0: together")) << said;
  EXPECT_TRUE(said.ends_with("rank 1 failed: tokens is 3, expected 4\n")) << said;
}

}  // namespace
}  // namespace moebius::app
