// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One process of a job of `moebius run` under a launcher is stopped or killed during its calls.
// The job then ends in time, names the missing rank once, and fails.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <future>
#include <regex>
#include <sstream>
#include <string_view>
#include <thread>

#include "tests/app/command.h"
#include "tests/app/tiny_model.h"

namespace moebius::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTimeoutMs = 2000;
constexpr std::chrono::seconds kMargin{15};  // time to end the processes on a busy machine

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::chrono::milliseconds took{};  // from the signal until the other processes have ended
};

// Returns what /proc says of a process after its name, or nothing when there is no such process.
std::istringstream stat_of(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = text.rfind(')');
  return std::istringstream(name_end == std::string::npos ? "" : text.substr(name_end + 1));
}

// Returns whether a process has ended, also where its launcher has not noticed yet.
bool has_ended(const std::string& pid) {
  std::string state;
  return !(stat_of(pid) >> state) || state == "Z";
}

// Returns the CPU time of a process in seconds, or 0 when there is no such process.
double cpu_seconds(const std::string& pid) {
  std::istringstream fields = stat_of(pid);
  std::string skipped;
  for (int i = 0; i < 11; ++i) {  // skips the fields from state to cmajflt
    fields >> skipped;
  }
  double user = 0;
  double system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// Returns the exit code of the process that the launcher says has failed first, or else the
// launcher's own. Why not always its own: Open MPI's launcher sometimes crashes when it has ended a
// job with a stopped process.
int exit_code_of_job(const std::string& out, int status) {
  const std::string_view label = "Exit code:";
  const size_t at = out.find(label);
  return at == std::string::npos ? WEXITSTATUS(status) : std::atoi(out.c_str() + at + label.size());
}

// Starts three processes that call the layer over and over, and sends `signal` to the process of
// `rank` once all have been at work for a while, or as soon as all have begun to start.
enum class Moment { kStart, kCalls };

Outcome run_job(const std::string& backend,
                int rank,
                int signal,
                const std::string& launcher_options = "",
                Moment moment = Moment::kCalls) {
  constexpr int kRanks = 3;
  const ScratchFolder scratch;
  // The shell writes its process id to a file, and exec lets the command keep it.
  const std::string job = "echo $$ > " + (scratch / "pid") +
                          ".${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; exec " + command_path() +
                          " run --group mpi --repeat 1000000 --model " + tiny_model() +
                          " --all2all " + backend;
  const std::string line = "MOEBIUS_TIMEOUT_MS=" + std::to_string(kTimeoutMs) +
                           " timeout -k 5 100 " + MOEBIUS_TEST_MPIEXEC + " " + launcher_options +
                           " -np " + std::to_string(kRanks) + " sh -c '" + job + "' > " +
                           (scratch / "out") + " 2>&1";
  auto ended = std::async(std::launch::async, [&] { return std::system(line.c_str()); });

  const auto pid_of = [&](int r) {
    std::ifstream file(scratch / "pid." + std::to_string(r));
    std::string pid;
    file >> pid;
    return pid;
  };
  constexpr double kStartSeconds = 0.5;  // starting MPI and loading the model take less
  bool all_work = false;
  while (!all_work && ended.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    all_work = true;
    for (int r = 0; r < kRanks; ++r) {
      all_work = all_work && !pid_of(r).empty() &&
                 (moment == Moment::kStart || cpu_seconds(pid_of(r)) > kStartSeconds);
    }
  }
  EXPECT_TRUE(all_work) << read_text(scratch / "out");
  const auto begin = Clock::now();
  if (all_work) {
    EXPECT_EQ(kill(std::atoi(pid_of(rank).c_str()), signal), 0);
  }
  // The launcher's end is not ours: that of Open MPI sometimes hangs when all but a stopped process
  // have ended.
  const auto others_have_ended = [&] {
    bool have = true;
    for (int r = 0; r < kRanks; ++r) {
      have = have && (r == rank || has_ended(pid_of(r)));
    }
    return have;
  };
  while (!others_have_ended() &&
         ended.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
  }
  Outcome outcome;
  outcome.took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
  const int status = ended.get();
  outcome.out = read_text(scratch / "out");
  outcome.exit_code = exit_code_of_job(outcome.out, status);
  return outcome;
}

// Returns the messages of the command without those of the launcher.
std::vector<std::string> messages(const std::string& out) {
  std::vector<std::string> found;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("moebius: ")) {
      found.push_back(line);
    }
  }
  return found;
}

void expect_one_message(const Outcome& outcome, int missing) {
  const std::vector<std::string> said = messages(outcome.out);
  ASSERT_EQ(said.size(), 1u) << outcome.out;
  // The rank that speaks may have waited for the third, which in turn waits for the missing one.
  const std::regex expected("moebius: rank [0-2]: [a-z_ ]+, epoch [1-9][0-9]*: rank " +
                            std::to_string(missing) + " did not come within " +
                            std::to_string(kTimeoutMs) +
                            " ms( \\(rank [0-2] waits for it\\))?, expected .*");
  EXPECT_TRUE(std::regex_match(said[0], expected)) << said[0];
}

using Backend = ::testing::TestWithParam<const char*>;
constexpr auto by_name = [](const auto& backend) { return std::string(backend.param); };

class JobFailureOf : public Backend {};

TEST_P(JobFailureOf, AStoppedProcessIsNamedAtTheDeadline) {
  const Outcome outcome = run_job(GetParam(), 1, SIGSTOP);
  expect_one_message(outcome, 1);
  EXPECT_EQ(outcome.exit_code, 3) << outcome.out;
  EXPECT_LT(outcome.took, std::chrono::milliseconds(kTimeoutMs) + kMargin);
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         JobFailureOf,
                         ::testing::Values("allgather_reducescatter",
                                           "high_throughput",
                                           "low_latency"),
                         by_name);

TEST(JobFailure, TheFirstRankCanBeTheOneThatStops) {
  const Outcome outcome = run_job("high_throughput", 0, SIGSTOP);
  expect_one_message(outcome, 0);
  EXPECT_EQ(outcome.exit_code, 3) << outcome.out;
  EXPECT_LT(outcome.took, std::chrono::milliseconds(kTimeoutMs) + kMargin);
}

class JobStart : public ::testing::TestWithParam<int> {};

TEST_P(JobStart, NamesAProcessThatStops) {
  const int rank = GetParam();
  const Outcome outcome = run_job("allgather_reducescatter", rank, SIGSTOP, "", Moment::kStart);
  const std::vector<std::string> said = messages(outcome.out);
  ASSERT_EQ(said.size(), 1u) << outcome.out;
  const std::string expected =
      "moebius: rank [0-2]: MPI_Init_thread did not end within 4000 ms: rank " +
      std::to_string(rank) + " is (stopped|not there)";
  EXPECT_TRUE(std::regex_match(said[0], std::regex(expected))) << said[0];
  EXPECT_EQ(outcome.exit_code, 3) << outcome.out;
  EXPECT_LT(outcome.took, std::chrono::milliseconds(kTimeoutMs) + kMargin);
}

INSTANTIATE_TEST_SUITE_P(Ranks, JobStart, ::testing::Values(0, 2));

// The last rank gathers rows of another output than the first two, which may have gone on by then.
TEST(JobFailure, NoOutputIsWrittenWhenOneRankFails) {
  constexpr int kJobs = 8;
  for (int i = 0; i < kJobs; ++i) {
    const ScratchFolder scratch;
    const std::string program = command_path() + " run --group mpi --dp 3 --model " + tiny_model() +
                                " --repeat 1 --output " + (scratch / "output");
    const std::string line = "timeout -k 5 60 " MOEBIUS_TEST_MPIEXEC " -np 2 " + program +
                             " --tokens 64 : -np 1 " + program + " --tokens 65 > " +
                             (scratch / "said") + " 2>&1";
    EXPECT_NE(std::system(line.c_str()), 0);
    const std::string said = read_text(scratch / "said");
    EXPECT_EQ(messages(said).size(), 1u) << said;
    EXPECT_FALSE(std::ifstream(scratch / "output").good());
  }
}

// The launcher notices at once, reports it and ends the other processes.
TEST(JobFailure, AKilledProcessEndsTheJob) {
  const Outcome outcome = run_job("allgather_reducescatter", 1, SIGKILL);
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.exit_code, 124) << "ended by timeout";
  EXPECT_NE(outcome.out.find("rank 1"), std::string::npos) << outcome.out;
  EXPECT_LE(messages(outcome.out).size(), 1u) << outcome.out;
  EXPECT_LT(outcome.took, std::chrono::milliseconds(kTimeoutMs) + kMargin);
}

// Where the launcher lets the other processes go on, they notice at their deadline.
class JobRecovery : public Backend {};

TEST_P(JobRecovery, AKilledProcessIsNamed) {
  const Outcome outcome = run_job(GetParam(), 2, SIGKILL, "--enable-recovery");
  expect_one_message(outcome, 2);
  EXPECT_LT(outcome.took, std::chrono::milliseconds(kTimeoutMs) + kMargin);
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         JobRecovery,
                         ::testing::Values("high_throughput", "low_latency"),
                         by_name);

}  // namespace
}  // namespace moebius::test
