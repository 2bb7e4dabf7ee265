// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs every checkpoint with expected outputs through the command on GPUs, with every backend and
// with 1, 2 and 4 ranks, which share GPUs where there are fewer.  One run is a process, the others
// are made in this process.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "moebius/device.h"
#include "tests/app/command_here.h"
#include "tests/app/fixtures.h"
#include "tests/gpu_test.h"

namespace moebius::test {
namespace {

class FixturesOnGpu : public FixtureTest {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "skipped: no GPU";
    }
    FixtureTest::SetUp();
  }

  static int64_t index() {
    const std::string_view own = GetParam().folder;
    return std::find_if(std::begin(kFixtures), std::end(kFixtures),
                        [&](const auto& fixture) { return fixture.folder == own; }) -
           std::begin(kFixtures);
  }

  void expect_on_gpu(int layer, const Words& options, Command command = run_command_here) {
    SCOPED_TRACE("layer " + std::to_string(layer) + ", " + testing::PrintToString(options));
    expect_output(layer, options + "--device cuda", GetParam().tolerance(), command);
  }
};

TEST_P(FixturesOnGpu, OneRank) {
  expect_on_gpu(0, {}, index() == 0 ? run_command : run_command_here);
  expect_on_gpu(1, "--graph");
  expect_on_gpu(1, "--chunk-tokens 16");
  expect_on_gpu(0, "--format batched");
  expect_on_gpu(1, "--format batched --graph");
}

TEST_P(FixturesOnGpu, AllGather) {
  expect_on_gpu(0, "--all2all allgather_reducescatter");
  expect_on_gpu(1, "--all2all allgather_reducescatter --ranks 2");
  expect_on_gpu(0, "--all2all allgather_reducescatter --ranks 4");
}

TEST_P(FixturesOnGpu, HighThroughput) {
  expect_on_gpu(0, "--all2all high_throughput");
  expect_on_gpu(1, "--all2all high_throughput --ranks 2");
  expect_on_gpu(0, "--all2all high_throughput --ranks 4");
  expect_on_gpu(0, "--all2all high_throughput --ranks 2 --graph");
  expect_on_gpu(1, "--all2all high_throughput --ranks 2 --capacity 64");
}

TEST_P(FixturesOnGpu, LowLatency) {
  expect_on_gpu(0, "--all2all low_latency --graph");
  expect_on_gpu(1, "--all2all low_latency --ranks 2");
  expect_on_gpu(0, "--all2all low_latency --ranks 4 --graph");
}

TEST_P(FixturesOnGpu, TensorParallel) {
  expect_on_gpu(0, "--tp 2");
  expect_on_gpu(1, "--tp 2 --dp 2 --all2all high_throughput");
}

// On a machine with one GPU the first checkpoint runs with all backends, and each of the others
// with one of them.  Why not with all: NCCL takes half a second to start, and it does not depend on
// the checkpoint.
TEST_P(FixturesOnGpu, NcclWithAGpuPerRank) {
  const int most = std::min(cuda_device_count(), 4);
  const std::string backends[] = {"allgather_reducescatter", "high_throughput", "low_latency"};
  for (int b = 0; b < 3; ++b) {
    if (most > 1 || index() == 0 || b == index() % 3) {
      expect_on_gpu(1,
                    {"--all2all", backends[b], "--group", "nccl", "--ranks", std::to_string(most)});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FixturesOnGpu, testing::ValuesIn(kFixtures), fixture_name);

}  // namespace
}  // namespace moebius::test
