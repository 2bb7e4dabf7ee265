// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Whatever error the processes of a job meet, one of them reports it.  Forked processes stand for
// those of a launcher, whose variables they set.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <regex>
#include <string>
#include <thread>

#include "app/commands.h"
#include "app/failure.h"
#include "comm/group/mpi/job.h"
#include "moebius/error.h"

namespace moebius::app {
namespace {

// What failing ranks print, and the exit code that all of them must have.
struct Outcome {
  std::string said;
  int exit_code = -1;
};

void set_launcher_variables(int rank, int size, int job) {
  const std::string name = std::to_string(getppid()) + "." + std::to_string(job);
  setenv("PMIX_NAMESPACE", name.c_str(), 1);
  setenv("OMPI_COMM_WORLD_RANK", std::to_string(rank).c_str(), 1);
  setenv("OMPI_COMM_WORLD_SIZE", std::to_string(size).c_str(), 1);
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(size).c_str(), 1);
}

// Returns the message of each rank's error.
std::vector<std::string> run_job(const ProcessGroupOptions& options,
                                 const std::function<void(Group& group)>& body,
                                 std::string& said) {
  static int num_jobs = 0;
  const int job = num_jobs++;
  std::vector<std::string> errors;
  testing::internal::CaptureStderr();
  try {
    run_process_ranks(
        options,
        [&](Group& group) {
          set_launcher_variables(group.rank(), group.size(), job);
          body(group);
        },
        &errors);
  } catch (const Error&) {  // of the first rank that failed
  }
  said = testing::internal::GetCapturedStderr();
  return errors;
}

Outcome fail_ranks(const ProcessGroupOptions& options,
                   const std::function<void(Group& group)>& fail) {
  Outcome outcome;
  const auto fail_as_command_does = [&](Group& group) {
    try {
      fail(group);
    } catch (const std::exception& error) {
      try {
        fail_job(group, error);
      } catch (const Reported& reported) {
        throw Error(std::to_string(reported.exit_code));
      }
    }
  };
  const std::vector<std::string> codes = run_job(options, fail_as_command_does, outcome.said);
  outcome.exit_code = std::atoi(codes[0].c_str());
  EXPECT_EQ(codes, std::vector<std::string>(codes.size(), codes[0]));
  return outcome;
}

Outcome meet(const ProcessGroupOptions& options,
             int guilty,
             bool is_silent,
             const std::string& what) {
  return fail_ranks(options, [&](Group& group) {
    throw CommError("rank " + std::to_string(group.rank()) + ": dispatch, call 3: " + what,
                    group.rank(), guilty, is_silent);
  });
}

TEST(FailJob, OneRankSpeaksForAll) {
  for (const int num_ranks : {2, 4}) {
    for (const bool is_silent : {false, true}) {
      const Outcome outcome =
          meet({.num_ranks = num_ranks}, 0, is_silent, "rank 0 did not come within 20 ms");
      EXPECT_TRUE(std::regex_match(outcome.said,
                                   std::regex("moebius: rank [0-3]: dispatch, call 3: rank 0 did "
                                              "not come within 20 ms\n")))
          << outcome.said;
      EXPECT_EQ(outcome.exit_code, kRunFailed);
    }
  }
}

// Processes of different machines cannot see each other's reports.
TEST(FailJob, OneNodeSpeaksForAll) {
  const ProcessGroupOptions options{.num_ranks = 3, .ranks_per_node = 1};
  EXPECT_EQ(meet(options, 2, true, "rank 2 has left").said,
            "moebius: rank 0: dispatch, call 3: rank 2 has left\n");
  EXPECT_EQ(meet(options, 0, true, "rank 0 has left").said,
            "moebius: rank 1: dispatch, call 3: rank 0 has left\n");
  EXPECT_EQ(meet(options, 0, false, "rank 0 failed: out of memory").said,
            "moebius: rank 0: dispatch, call 3: rank 0 failed: out of memory\n");
}

// A process that was stopped may go on when the others have reported that.
TEST(FailJob, WhoWasMissedStaysSilent) {
  std::string said;
  run_job(
      {.num_ranks = 2, .timeout = std::chrono::milliseconds(100)},
      [](Group& group) {
        if (group.rank() == 0) {
          EXPECT_THROW(group.barrier("together"), CommError);
          group.abort("reported");
          return;
        }
        while (!group.is_missed()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        EXPECT_THROW(fail_job(group, Error("a peer's memory is gone")), Reported);
      },
      said);
  EXPECT_EQ(said, "");
}

// A rank that fails alone says why itself.  A place in the source only helps callers of the
// library, so the report does not have it.
TEST(FailJob, TheFirstErrorIsTold) {
  for (const bool alone : {false, true}) {
    Outcome outcome;
    run_job(
        {.num_ranks = 2},
        [&](Group& group) {
          try {
            expect_eq(alone && group.rank() == 0 ? 4 : 3, 4, "tokens");
            group.barrier("together");
          } catch (const std::exception& error) {
            EXPECT_THROW(fail_job(group, error), Reported);
          }
        },
        outcome.said);
    EXPECT_EQ(outcome.said, "moebius: tokens is 3, expected 4\n");
  }
}

TEST(ReportOnce, AnotherProcessReportsWhereTheFirstDies) {
  std::string said;
  const auto body = [](Group& group) {
    if (group.rank() == 0) {
      comm::report_once([] { kill(getpid(), SIGKILL); });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // rank 0 is first
    comm::report_once([] { std::fputs("reported\n", stderr); });
  };
  run_job({.num_ranks = 3}, body, said);
  EXPECT_EQ(said, "reported\n");
}

TEST(ReportOnce, AProcessReportsOnce) {
  std::string said;
  run_job(
      {.num_ranks = 1},
      [](Group&) {
        for (int i = 0; i < 2; ++i) {
          comm::report_once([] { std::fputs("reported\n", stderr); });
        }
      },
      said);
  EXPECT_EQ(said, "reported\n");
}

TEST(Presence, NamesWhoIsNotThereAndWhoIsStopped) {
  std::string said;
  run_job(
      {.num_ranks = 4},
      [](Group& group) {
        const comm::Presence presence =
            group.rank() == 1 ? comm::Presence() : comm::Presence("group 0");
        int64_t stopped = group.rank() == 2 ? getpid() : 0;
        all_reduce_sum(group, "who will be stopped", {&stopped, 1});
        if (group.rank() == 0) {
          kill(static_cast<pid_t>(stopped), SIGSTOP);
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          std::fprintf(stderr, "%s\n",
                       comm::describe_presence(comm::MeetingPlace::of_job(0)).c_str());
          kill(static_cast<pid_t>(stopped), SIGCONT);
        }
        group.barrier("seen");
      },
      said);
  EXPECT_EQ(said, "rank 1 is not there; rank 2 is stopped\n");
}

}  // namespace
}  // namespace moebius::app
