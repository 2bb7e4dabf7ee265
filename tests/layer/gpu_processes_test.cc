// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Layers over processes of the caller that share a GPU: four processes that have only pipes between
// them.  This process forks, so it may not look for GPUs itself.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "tests/comm/piped_processes.h"
#include "tests/layer/backends.h"
#include "tests/layer/small_layer.h"
#include "tests/layer/spread.h"

namespace moebius::testing {
namespace {

constexpr int kNumRanks = 4;
// The largest relative error of a row: a GPU sums in another order.
constexpr double kBound = 1e-4;

bool has_gpu() {
  const auto body = [](const Bootstrap&) {
    if (cuda_device_count() == 0) {
      throw Unsupported("no GPU");
    }
  };
  return PipedProcesses({.num_ranks = 1}, body).wait(std::chrono::seconds(60))[0].message.empty();
}

class GpuProcessLayer : public ::testing::TestWithParam<All2AllBackend> {
 protected:
  void SetUp() override {
    static const bool found = has_gpu();
    if (!found) {
      GTEST_SKIP() << "skipped: no GPU";
    }
  }
};

// Every rank has tokens of its own, and a share of the experts.
void run_layer(const Bootstrap& bootstrap, All2AllBackend backend, int num_calls) {
  const Device device = Device::cuda(0);
  const auto group = make_cuda_group(make_process_group(bootstrap), device);
  const Tensor hidden =
      random_tensor({5 + 2 * group->rank(), SmallLayer::kHidden}, DType::kF32, 20 + group->rank());
  const Tensor expected = run_alone(SmallLayer::whole(), SmallLayer::options(), hidden);
  const auto parallel = ParallelConfig::make(1, 0, kNumRanks, group->rank(), true, backend);
  MoeLayerOptions options;
  options.format = format_of(backend);
  const Stream stream = Stream::cuda(device.index);
  MoeLayer layer(share_of(SmallLayer::whole(), parallel), options, stream, group.get());
  WorkspacePool workspaces;
  CallContext context;
  context.stream = stream;
  context.workspaces = &workspaces;
  const Tensor input = to_device(hidden, device, stream);
  const Tensor output = Tensor::empty(hidden.shape(), DType::kF32, device);
  for (int call = 0; call < num_calls; ++call) {
    layer.forward(input, output, context);
    const Tensor actual = to_device(output, Device::cpu(), stream);
    layer.check();  // whether a rank was lost in this call
    expect_rows_of_one_rank(actual, expected, kBound, call);
  }
  group->barrier("all are done");
}

TEST_P(GpuProcessLayer, GivesWhatOneRankGives) {
  const auto body = [](const Bootstrap& bootstrap) { run_layer(bootstrap, GetParam(), 3); };
  const std::chrono::seconds most(60);
  expect_well(PipedProcesses({.num_ranks = kNumRanks, .timeout = most}, body).wait(most));
}

TEST_P(GpuProcessLayer, NamesTheOneThatIsKilledOrStopped) {
  constexpr int kForEver = 1'000'000;
  const std::chrono::seconds timeout(4);
  for (const int signal : {SIGKILL, SIGSTOP}) {
    constexpr int kGuilty = 2;
    const auto body = [](const Bootstrap& bootstrap) {
      run_layer(bootstrap, GetParam(), kForEver);
    };
    PipedProcesses processes({.num_ranks = kNumRanks, .timeout = timeout}, body);
    std::this_thread::sleep_for(std::chrono::seconds(5));
    kill(processes.pid(kGuilty), signal);
    expect_named(processes.wait(4 * timeout, kGuilty), kGuilty);
  }
}

std::string name_of(const ::testing::TestParamInfo<All2AllBackend>& param) {
  return std::string(name(param.param));
}
INSTANTIATE_TEST_SUITE_P(Backends, GpuProcessLayer, ::testing::ValuesIn(kBackends), name_of);

}  // namespace
}  // namespace moebius::testing
