// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Processes that share a GPU, one of which is killed or stopped at a random moment, from its start
// on.  Every other process must name it within the deadline, or go on without it where it shall,
// and nothing may be left in /dev/shm.  This process forks, so it may not look for GPUs itself.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "moebius/low_latency.h"
#include "tests/comm/cuda/sides.h"
#include "tests/comm/piped_processes.h"
#include "tests/comm/two_tokens.h"

namespace moebius::testing {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 4;

std::set<std::string> shared_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path().filename());
  }
  return names;
}

// How many moments are tried; MOEBIUS_TEST_MOMENTS asks for more.
int num_moments() {
  const char* wanted = std::getenv("MOEBIUS_TEST_MOMENTS");
  return wanted == nullptr ? 4 : std::atoi(wanted);
}

bool has_gpu() {
  const auto body = [](const Bootstrap&) { expect_ge(cuda_device_count(), 1, "GPUs"); };
  return PipedProcesses({.num_ranks = 1}, body).wait(std::chrono::seconds(60))[0].message.empty();
}

class GpuStops : public ::testing::Test {
 protected:
  void SetUp() override {
    // These processes have few streams.  With the 32 hardware queues that tests ask for, some
    // twenty processes use up what a GPU has.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", /*overwrite=*/1);
    static const bool found = has_gpu();
    if (!found) {
      GTEST_SKIP() << "skipped: no GPU";
    }
  }
};

std::unique_ptr<Group> join(const Bootstrap& bootstrap) {
  return make_cuda_group(make_process_group(bootstrap), Device::cuda(0));
}

// Calls of high throughput or low latency in turn, until something goes wrong.
void call_for_ever(const Bootstrap& bootstrap) {
  const auto group = join(bootstrap);
  const DispatchProblem p =
      with_tokens({.num_experts = 16, .topk = 4, .hidden = 512}, group->size(), 30, 7);
  const Stream stream = Stream::cuda(0);
  const RankInput in = make_input(p, group->rank());
  const auto up = [&](const Tensor& t) { return to_device(t, stream.device(), stream); };
  const DispatchInput input{{up(in.x), up(in.code)}, up(in.ids), up(in.weights), 4, {}};
  HighThroughput rows(*group, p.placement(), small_config(16), small_config(16));
  LowLatency selections(*group, p.placement(), {64, p.hidden, p.topk, DType::kBF16});
  for (;;) {
    const DispatchOutput output = rows.dispatch(input, stream);
    rows.combine(rows_of(output), *output.handle, stream);
    const auto received = selections.dispatch({input.payloads[0], input.topk_ids}, stream);
    selections.combine({received.x, input.topk_ids, input.topk_weights}, *received.handle, stream);
    stream.synchronize();
    selections.check();
  }
}

// A job whose rank `guilty` gets a signal.
struct Job {
  std::unique_ptr<PipedProcesses> processes;
  int guilty;
  milliseconds delay;
  Clock::time_point when = {};
};

void expect_blamed(Job& job, milliseconds limit) {
  SCOPED_TRACE(fmt::format("rank {} after {} ms", job.guilty, job.delay.count()));
  const auto reports = job.processes->wait(limit + std::chrono::seconds(20), job.guilty);
  expect_blamed(reports, job.guilty, job.when, limit);
}

// Sends the signal to a rank at a random moment.  Several jobs run beside each other, which takes
// less time, most of which is that of starting.
void disturb(int signal, milliseconds timeout, milliseconds limit) {
  constexpr int kAtOnce = 4;
  const std::set<std::string> before = shared_files();
  std::mt19937 random(static_cast<uint32_t>(signal));
  for (int moment = 0; moment < num_moments(); moment += kAtOnce) {
    std::vector<Job> jobs;
    for (int i = moment; i < std::min(moment + kAtOnce, num_moments()); ++i) {
      // Starting takes some seconds, so that half of the moments are before, during or after it.
      const milliseconds delay(random() % (i % 2 == 0 ? 3000 : 6000));
      jobs.push_back({nullptr, static_cast<int>(random() % kRanks), delay});
    }
    std::sort(jobs.begin(), jobs.end(),
              [](const Job& a, const Job& b) { return a.delay < b.delay; });
    const auto begin = Clock::now();
    for (Job& job : jobs) {
      job.processes = std::make_unique<PipedProcesses>(
          ProcessGroupOptions{.num_ranks = kRanks, .timeout = timeout}, call_for_ever);
    }
    for (Job& job : jobs) {
      std::this_thread::sleep_until(begin + job.delay);
      job.when = Clock::now();
      kill(job.processes->pid(job.guilty), signal);
    }
    for (Job& job : jobs) {
      expect_blamed(job, limit);
    }
  }
  EXPECT_EQ(shared_files(), before);
}

TEST_F(GpuStops, ARankThatIsKilledAtARandomMomentIsNamed) {
  disturb(SIGKILL, milliseconds(6'000), milliseconds(18'000));
}

TEST_F(GpuStops, ARankThatIsStoppedAtARandomMomentIsNamed) {
  disturb(SIGSTOP, milliseconds(6'000), milliseconds(18'000));
}

// Rank 3 has one of the experts of token 1.  It gets the signal before its second call.
void go_on_without_rank_3(const Bootstrap& bootstrap, int signal) {
  const auto group = join(bootstrap);
  const TwoTokens tokens;
  LowLatency transport(*group, ExpertPlacement::linear(kRanks, kRanks), tokens.options);
  const Stream stream = Stream::cuda(0);
  const auto up = [&](const Tensor& t) { return to_device(t, stream.device(), stream); };
  const Tensor x_there = up(tokens.x);
  const Tensor ids_there = up(tokens.ids);
  const Tensor weights_there = up(tokens.weights);
  for (int call = 0; call < 6; ++call) {
    if (group->rank() == 3 && call == 1) {
      raise(signal);
    }
    const auto rows = transport.dispatch({.x = x_there, .topk_ids = ids_there}, stream);
    const auto sums = transport.combine(
        {.x = rows.x, .topk_ids = ids_there, .topk_weights = weights_there}, *rows.handle, stream);
    const Tensor out = to_device(sums.x, Device::cpu(), stream);
    transport.check();
    expect_eq(static_cast<int64_t>(get_float(out, 0)), 2, "the sum of token 0");
    expect_eq(static_cast<int64_t>(get_float(out, 128)), call == 0 ? 2 : 1, "the sum of token 1");
    expect_eq(int64_t{transport.dead_ranks()[3]}, int64_t{call > 0}, "rank 3 is excluded");
  }
}

TEST_F(GpuStops, LowLatencyGoesOnWithoutARankThatIsKilledOrStopped) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    SCOPED_TRACE(signal == SIGKILL ? "killed" : "stopped");
    const auto body = [=](const Bootstrap& bootstrap) { go_on_without_rank_3(bootstrap, signal); };
    const auto reports = PipedProcesses({.num_ranks = kRanks, .timeout = milliseconds(5'000)}, body)
                             .wait(std::chrono::seconds(60), 3);
    for (const size_t rank : {0u, 1u, 2u}) {
      ASSERT_TRUE(reports[rank].has_reported) << "rank " << rank << " has not ended";
      EXPECT_EQ(reports[rank].message, "") << "rank " << rank;
    }
  }
}

}  // namespace
}  // namespace moebius::testing
