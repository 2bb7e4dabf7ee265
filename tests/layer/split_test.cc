// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Layers over groups that the caller has made: parts of a split, and processes of its own.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <thread>
#include <vector>

#include "tests/comm/piped_processes.h"
#include "tests/layer/backends.h"
#include "tests/layer/small_layer.h"
#include "tests/layer/spread.h"

namespace moebius::testing {
namespace {

// The largest relative error of a row: sums over ranks are rounded in another order.
constexpr double kBound = 1e-5;

constexpr std::array<int64_t, 2> kTokens = {7, 4};  // of each data-parallel rank

Tensor all_tokens() {
  return random_tensor({kTokens[0] + kTokens[1], SmallLayer::kHidden}, DType::kF32, 20);
}
Tensor tokens_of(int dp_rank) {
  const int64_t begin = dp_rank == 0 ? 0 : kTokens[0];
  return all_tokens().slice(begin, begin + kTokens[static_cast<size_t>(dp_rank)]).clone();
}

// The second layer of the model is the first with its experts in another order.
MoeLayerWeights weights_of(int stage, const ParallelConfig& parallel) {
  MoeLayerWeights whole = SmallLayer::whole();
  if (stage == 1) {
    whole.router.gate = random_tensor(whole.router.gate.shape(), DType::kF32, 77, 0.3f);
  }
  return share_of(std::move(whole), parallel);
}

MoeLayerOptions options_for(All2AllBackend backend) {
  MoeLayerOptions options = SmallLayer::options();
  options.format = format_of(backend);
  return options;
}

class SplitGroups : public ::testing::TestWithParam<All2AllBackend> {};

// Eight threads: 2 stages of a pipeline x 2 data-parallel ranks x 2 tensor-parallel ranks, whose
// experts are spread over the 4 ranks of a stage.
TEST_P(SplitGroups, TensorExpertAndPipelineParallelGiveWhatOneRankGives) {
  Tensor expected = all_tokens();
  for (const int stage : {0, 1}) {
    expected = run_alone(weights_of(stage, {}), SmallLayer::options(), expected);
  }
  std::array<Tensor, 8> outputs;
  run_thread_ranks({.num_ranks = 8}, [&](Group& world) {
    const int stage = world.rank() / 4;
    const int dp_rank = world.rank() / 2 % 2;
    const int tp_rank = world.rank() % 2;
    const auto experts = world.split(stage);
    const auto pipeline = world.split(world.rank() % 4, stage);
    const auto tensor = experts->split(dp_rank, tp_rank);
    ASSERT_EQ(experts->rank(), 2 * dp_rank + tp_rank);
    ASSERT_EQ(pipeline->rank(), stage);
    ASSERT_EQ(tensor->original_rank(0), world.rank() / 2 * 2);

    const auto parallel = ParallelConfig::make(2, tp_rank, 2, dp_rank, true, GetParam());
    MoeLayer layer(weights_of(stage, parallel), options_for(GetParam()), Stream::cpu(1),
                   experts.get());
    const Tensor hidden = tokens_of(dp_rank);
    for (int call = 0; call < 3; ++call) {
      // The second stage takes what the first has made.
      Tensor input = hidden.clone();
      Tensor output;
      if (stage == 0) {
        output = forward(layer, input, DType::kF32, Stream::cpu(1));
        const SendBlock send{1, output.raw(), output.nbytes()};
        pipeline->exchange("next stage", {&send, 1}, {});
      } else {
        poison(input);
        const RecvBlock recv{0, input.raw(), input.nbytes()};
        pipeline->exchange("next stage", {}, {&recv, 1});
        output = forward(layer, input, DType::kF32, Stream::cpu(1));
      }
      // Both tensor-parallel ranks have the same rows.
      std::vector<std::byte> rows(static_cast<size_t>(2 * output.nbytes()));
      all_gather_bytes(*tensor, "compare", output.raw(), output.nbytes(), rows.data());
      EXPECT_EQ(std::memcmp(rows.data(), rows.data() + output.nbytes(),
                            static_cast<size_t>(output.nbytes())),
                0);
      outputs[static_cast<size_t>(world.rank())] = output;
    }
    world.barrier("all are done");
  });
  const Tensor actual = Tensor::empty(expected.shape(), DType::kF32);
  copy(outputs[4], actual.slice(0, kTokens[0]), {});
  copy(outputs[6], actual.slice(kTokens[0], kTokens[0] + kTokens[1]), {});
  expect_near_rows(actual, expected, kBound);
}

class OwnProcesses : public ::testing::TestWithParam<All2AllBackend> {};

// Runs the layer on four processes with pipes between them: 2 data-parallel x 2 tensor-parallel.
void run_layer(const Bootstrap& bootstrap, All2AllBackend backend, int num_calls) {
  const auto group = make_process_group(bootstrap);
  const int dp_rank = group->rank() / 2;
  const auto parallel = ParallelConfig::make(2, group->rank() % 2, 2, dp_rank, true, backend);
  const Tensor expected = run_alone(weights_of(0, {}), SmallLayer::options(), tokens_of(dp_rank));
  MoeLayer layer(weights_of(0, parallel), options_for(backend), Stream::cpu(1), group.get());
  for (int call = 0; call < num_calls; ++call) {
    const Tensor output = forward(layer, tokens_of(dp_rank), DType::kF32, Stream::cpu(1));
    expect_rows_of_one_rank(output, expected, kBound, call);
  }
  group->barrier("all are done");
}

TEST_P(OwnProcesses, GiveWhatOneRankGives) {
  const auto body = [](const Bootstrap& bootstrap) { run_layer(bootstrap, GetParam(), 5); };
  const std::chrono::seconds most(60);
  expect_well(PipedProcesses({.num_ranks = 4, .timeout = most}, body).wait(most));
}

TEST_P(OwnProcesses, NameTheOneThatIsKilledWithinALayer) {
  constexpr int kForEver = 1'000'000;
  const auto body = [](const Bootstrap& bootstrap) { run_layer(bootstrap, GetParam(), kForEver); };
  const std::chrono::seconds most(60);
  for (const int guilty : {0, 2}) {
    PipedProcesses processes({.num_ranks = 4, .timeout = most}, body);
    std::this_thread::sleep_for(std::chrono::milliseconds(300 + 37 * guilty));
    kill(processes.pid(guilty), SIGKILL);
    expect_named(processes.wait(most / 2, guilty), guilty);
  }
}

std::string name_of(const ::testing::TestParamInfo<All2AllBackend>& param) {
  return std::string(name(param.param));
}
INSTANTIATE_TEST_SUITE_P(Backends, SplitGroups, ::testing::ValuesIn(kBackends), name_of);
INSTANTIATE_TEST_SUITE_P(Backends, OwnProcesses, ::testing::ValuesIn(kBackends), name_of);

}  // namespace
}  // namespace moebius::testing
