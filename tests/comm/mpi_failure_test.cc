// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Nothing hangs under MPI either.  Jobs are started in which one process misbehaves or is killed;
// every other process must report it in time, and the job must end.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>

#include "tests/by_name.h"
#include "tests/comm/failure_cases.h"
#include "tests/temp_dir.h"

namespace moebius::testing {
namespace {

struct Report {
  std::chrono::milliseconds took{};
  std::string message;
};

struct Job {
  std::map<int, Report> reports;  // by rank
  std::string output;
  int status = 0;
};

// A job that does not end by itself is ended by timeout of coreutils, which exits with 124.
constexpr int kEndedByTimeout = 124 << 8;  // as pclose() returns it

Job run_job(int num_ranks, const std::string& options, const std::string& name, int guilty) {
  constexpr int kJobSeconds = 60;
  const TempDir folder;
  Job job;
  const std::string command = fmt::format(
      "timeout -k 5 {} {} -np {} {} {} {} {} {} 2>&1", kJobSeconds, MOEBIUS_TEST_MPIEXEC, num_ranks,
      options, MOEBIUS_TEST_MPI_RANK, name, guilty, folder.path().string());
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << "cannot run " << command;
    return job;
  }
  std::array<char, 4096> buffer;
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) {
    job.output.append(buffer.data(), n);
  }
  job.status = pclose(pipe);
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::ifstream file(folder / std::to_string(rank));
    int64_t took = 0;
    if (file >> took) {
      Report& report = job.reports[rank];
      report.took = std::chrono::milliseconds(took);
      std::getline(file >> std::ws, report.message);
      job.output += fmt::format("rank {}: {}\n", rank, report.message);
    }
  }
  return job;
}

void expect_reports(const Job& job, const FailureCase& c, int num_ranks, int guilty) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto report = job.reports.find(rank);
    if (rank == guilty) {
      // A rank that stalls or died may be ended by the launcher before it can say anything.
      if (!c.is_timeout) {
        EXPECT_EQ(missing_from_guilty(report == job.reports.end() ? "" : report->second.message, c),
                  "")
            << job.output;
      }
      continue;
    }
    ASSERT_NE(report, job.reports.end()) << "rank " << rank << " reports nothing:\n" << job.output;
    EXPECT_EQ(missing_from(report->second.message, c, rank, guilty), "") << job.output;
    EXPECT_LT(report->second.took, report_limit(c, 1));
  }
  EXPECT_NE(job.status, kEndedByTimeout) << job.output;
}

class MpiFailureTest : public ::testing::TestWithParam<FailureCase> {};

TEST_P(MpiFailureTest, IsReportedByEveryOtherRank) {
  for (const int num_ranks : {2, 4}) {
    const int guilty = num_ranks / 2;
    const Job job = run_job(num_ranks, "", GetParam().name, guilty);
    expect_reports(job, GetParam(), num_ranks, guilty);
    EXPECT_NE(job.status, 0) << "the job must tell of its failure";
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, MpiFailureTest, ::testing::ValuesIn(failure_cases()), by_name);

TEST(MpiStart, WhoComesAfterTheOthersHaveGivenUpSaysSo) {
  const Job job = run_job(2, "", "comes_late", 1);
  ASSERT_EQ(job.reports.size(), 2u) << job.output;
  for (const auto& [rank, report] : job.reports) {
    EXPECT_EQ(report.message,
              fmt::format("rank {}: make_mpi_group, epoch 0: not every rank came within {} ms: "
                          "rank {} is not there",
                          rank, short_timeout(1).count(), 1 - rank));
  }
  EXPECT_NE(job.status, kEndedByTimeout) << job.output;
}

TEST(MpiStart, MayBeTriedAgain) {
  const Job job = run_job(2, "", "is_awaited_again", 1);
  ASSERT_EQ(job.reports.size(), 2u) << job.output;
  EXPECT_EQ(job.reports.at(0).message + job.reports.at(1).message, "") << job.output;
  EXPECT_EQ(job.status, 0) << job.output;
}

// Ranks 1 and 3 are a communicator, in which rank 1 (3 of the job) comes late.
TEST(MpiStart, WhoComesLateInACommunicatorIsNamed) {
  const Job job = run_job(4, "", "comes_late_in_half", 3);
  ASSERT_EQ(job.reports.size(), 4u) << job.output;
  EXPECT_EQ(job.reports.at(0).message + job.reports.at(2).message, "") << job.output;
  EXPECT_EQ(job.reports.at(1).message,
            fmt::format("rank 0: make_mpi_group, epoch 0: not every rank came within {} ms: rank 3 "
                        "of the job is not there",
                        short_timeout(1).count()));
  EXPECT_NE(job.status, kEndedByTimeout) << job.output;
}

TEST(MpiStart, MayBeTriedAgainInACommunicator) {
  const Job job = run_job(4, "", "is_awaited_again_in_half", 3);
  ASSERT_EQ(job.reports.size(), 4u) << job.output;
  for (const auto& [rank, report] : job.reports) {
    EXPECT_EQ(report.message, "") << job.output;
  }
  EXPECT_EQ(job.status, 0) << job.output;
}

// mpirun of Open MPI ends a job at once when a process was killed.  With this option it does not,
// and it exits with 0 in the end.
constexpr const char* kKeepGoing = "--enable-recovery";

TEST(MpiDeath, IsReportedBySurvivorsWithinTheDeadline) {
  const FailureCase c{.name = "dies_between_calls",
                      .body = {},
                      .calls = {"dispatch, epoch 2"},
                      .parts = {"rank @ did not come within", "expected at epoch 2"},
                      .is_timeout = true,
                      .guilty_reports = false};
  for (const int num_ranks : {2, 4}) {
    expect_reports(run_job(num_ranks, kKeepGoing, c.name, num_ranks - 1), c, num_ranks,
                   num_ranks - 1);
  }
}

TEST(MpiDeath, IsReportedWithLargeMessagesUnderWay) {
  const FailureCase c{.name = "dies_with_bytes_under_way",
                      .body = {},
                      .calls = {"dispatch, epoch 2", "combine, epoch 3"},
                      .parts = {"rank @ did not come within"},
                      .is_timeout = true,
                      .guilty_reports = false};
  expect_reports(run_job(4, kKeepGoing, c.name, 1), c, 4, 1);
}

TEST(MpiDeath, SurvivorsGoOnWithoutTheDead) {
  const FailureCase c{
      .name = "goes_on_without_the_dead",
      .body = {},
      .calls = {"round, epoch 3"},
      .parts = {"rank @ did not come within", "expected signal 2", "went on for 23 rounds"},
      .is_timeout = true,
      .guilty_reports = false,
      .goes_on = std::chrono::seconds(10)};
  expect_reports(run_job(4, kKeepGoing, c.name, 2), c, 4, 2);
}

// MPI would read memory that is gone if the guilty process called it again, for another group.
TEST(MpiMessageUnderWay, IsAbandonedAtOnceAndLeftAlone) {
  const FailureCase c{.name = "throws_with_a_message_under_way",
                      .body = {},
                      .calls = {"dispatch, epoch 2", "combine, epoch 3"},
                      .parts = {"rank @ abandoned dispatch at epoch 2"},
                      .guilty_says = "expert 7 is on fire"};
  const Job job = run_job(4, "", c.name, 1);
  expect_reports(job, c, 4, 1);
  EXPECT_EQ(job.output.find("signal"), std::string::npos) << job.output;
}

TEST(MpiFailure, OneLookFindsThatARankIsMissed) {
  const Job job = run_job(2, "", "looks_once_when_missed", 1);
  ASSERT_EQ(job.reports.size(), 2u) << job.output;
  EXPECT_EQ(job.reports.at(1).message, "this rank is missed");
}

TEST(MpiFailure, IsKnownBeforeSomebodyLeavesBecauseOfIt) {
  const FailureCase c{.name = "leaves_before_the_cause_is_known",
                      .body = {},
                      .calls = {"dispatch, epoch 1", "receive, epoch 0"},
                      .parts = {"rank @ failed: expert 7 is on fire"}};
  expect_reports(run_job(4, "", c.name, 1), c, 4, 1);
}

TEST(MpiDeath, EndsTheJobWithoutRecovery) {
  const Job job = run_job(4, "", "dies_between_calls", 3);
  EXPECT_NE(job.status, 0);
  EXPECT_NE(job.status, kEndedByTimeout) << job.output;
}

}  // namespace
}  // namespace moebius::testing
