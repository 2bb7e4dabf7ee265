// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Counts what calls on a GPU ask of the CUDA runtime, which is most of what they cost the host.  A
// launch takes 2 to 3 us, and recording an event or waiting for one half a microsecond.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moebius/group.h"
#include "moebius/low_latency.h"
#include "tests/fake_cuda.h"
#include "tests/layer/cuda_rank_layer.h"
#include "tests/scoped_setting.h"

namespace moebius::testing {
namespace {

using Calls = std::map<std::string, int>;

MoeLayerWeights weights(bool has_shared) {
  MoeLayerWeights weights = weights_of({});
  if (!has_shared) {
    weights.shared = {};
    weights.shared_gate = {};
    weights.shared_intermediate = 0;
  }
  return weights;
}

// Encoding a tensor map asks nothing of the GPU, and takes a tenth of a launch.
constexpr char kEncode[] = "cuTensorMapEncodeTiled";

// The calls of the runtime that one more layer call makes, after some, if it is no replay.
Calls all_steady_calls(bool has_shared, int64_t num_tokens) {
  const ScopedSetting no_replays("MOEBIUS_REPLAYS", "0");
  const Stream stream = Stream::cuda(0);
  WorkspacePool workspaces;
  MoeLayer layer(weights(has_shared), {}, stream);
  const Tensor hidden = Tensor::zeros({num_tokens, kHidden}, DType::kBF16, stream.device());
  const Tensor output = Tensor::zeros(hidden.shape(), hidden.dtype(), stream.device());
  const CallContext context{.stream = stream, .workspaces = &workspaces};
  for (int i = 0; i < 3; ++i) {
    layer.forward(hidden, output, context);
  }
  take_cuda_calls();
  layer.forward(hidden, output, context);
  return take_cuda_calls();
}
// The same but for maps.
Calls steady_calls(bool has_shared, int64_t num_tokens) {
  Calls calls = all_steady_calls(has_shared, num_tokens);
  calls.erase(kEncode);
  return calls;
}
int maps_encoded(int64_t num_tokens) {
  return all_steady_calls(false, num_tokens)[kEncode];
}

// Router logits, selection with the order of slots, two GEMMs, and sums of a token's rows.
TEST(HostCalls, ALayerOfOneRankAsksForFiveLaunchesAndNothingElse) {
  for (const int64_t num_tokens : {1, 16, 17, 128}) {
    EXPECT_EQ(steady_calls(false, num_tokens), (Calls{{"launch", 5}})) << num_tokens << " tokens";
  }
}

// A call encodes the two maps of GEMM2's rows; GEMM1's are fetched by index.
TEST(HostCalls, ACallEncodesNoMapOfWeights) {
  for (const int64_t num_tokens : {1, 128}) {
    EXPECT_EQ(maps_encoded(num_tokens), 2) << num_tokens << " tokens";
  }
}

// With more tokens the order is a kernel of its own.
TEST(HostCalls, MoreTokensAskForSixLaunches) {
  EXPECT_EQ(steady_calls(false, 129), (Calls{{"launch", 6}}));
}

// Their number of rows, a counter, two GEMMs and a gate; and the sum with the routed experts' rows.
// They run on a stream beside the call's, so that each stream waits for the other once.
TEST(HostCalls, SharedExpertsAskForSixLaunchesAndTwoEvents) {
  EXPECT_EQ(steady_calls(true, 1), (Calls{{"launch", 5 + 6},
                                          {"cudaEventRecord", 2},
                                          {"cudaStreamGetCaptureInfo", 2},
                                          {"cudaStreamWaitEvent", 2}}));
}

// A layer whose calls are replayed from now on: the first has made workspaces, and five came since.
struct ReplayedLayer {
  explicit ReplayedLayer(MoeLayerParts parts = {})
      : layer(weights(/*has_shared=*/false), {}, stream, nullptr, std::move(parts)) {
    warm_up();
  }
  void warm_up() {
    for (int i = 0; i < 6; ++i) {
      layer.forward(hidden, output, context);
    }
    take_cuda_calls();
  }
  Tensor tensor() const { return Tensor::zeros({4, kHidden}, DType::kBF16, stream.device()); }
  Calls calls_of(const MoeLayerInput& input, const Tensor& out) {
    return calls_of(input, out, context);
  }
  Calls calls_of(const MoeLayerInput& input, const Tensor& out, const CallContext& own) {
    layer.forward(input, out, own);
    return take_cuda_calls();
  }

  Stream stream = Stream::cuda(0);
  WorkspacePool workspaces;
  CallContext context{.stream = stream, .workspaces = &workspaces};
  Tensor hidden = tensor();
  Tensor output = tensor();
  MoeLayer layer;
};
const Calls kReplayed{{"cudaGraphLaunch", 1}, {"cudaStreamGetCaptureInfo", 1}};

bool is_launched(const Calls& calls) {
  const auto launches = calls.find("launch");
  return launches != calls.end() && launches->second == 5 && calls.count("cudaGraphLaunch") == 0;
}

TEST(Replays, ACallThatRepeatsIsOneLaunchOfAGraph) {
  ReplayedLayer one;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(one.calls_of({.hidden = one.hidden}, one.output), kReplayed);
  }
}

TEST(Replays, WhatDiffersIsLaunched) {
  ReplayedLayer one;
  const Tensor other = one.tensor();
  const MoeLayerInput same{.hidden = one.hidden};
  EXPECT_TRUE(is_launched(one.calls_of({.hidden = other}, one.output)));
  EXPECT_TRUE(is_launched(one.calls_of(same, other)));
  EXPECT_TRUE(
      is_launched(one.calls_of({.hidden = one.hidden.slice(0, 2)}, one.output.slice(0, 2))));
  CallContext context = one.context;
  context.max_sms = 100;
  EXPECT_TRUE(is_launched(one.calls_of(same, one.output, context)));
  context = one.context;
  context.stream = Stream::cuda(0);
  EXPECT_TRUE(is_launched(one.calls_of(same, one.output, context)));
  Profile profile;
  context = one.context;
  context.profile = &profile;
  EXPECT_NE(one.calls_of(same, one.output, context), kReplayed);
  EXPECT_EQ(one.calls_of(same, one.output), kReplayed);
  MoeLayerInput in_chunks = same;
  in_chunks.kernel = KernelOptions{.chunk_tokens = 2};
  EXPECT_NE(one.calls_of(in_chunks, one.output), kReplayed);
  one.warm_up();
  context = one.context;
  context.microbatch = 1;
  EXPECT_NE(one.calls_of(same, one.output, context), kReplayed);
}

// A graph has the addresses of buffers that a larger call, or the caller, has given back.
TEST(Replays, OtherWorkspacesAreLaunchedAndThenReplayed) {
  const auto give_back = [](ReplayedLayer& one) { one.workspaces.trim(); };
  const auto grow = [](ReplayedLayer& one) {
    const Tensor many = Tensor::zeros({4000, kHidden}, DType::kBF16, one.stream.device());
    one.layer.forward(many, many, one.context);
  };
  for (const std::function<void(ReplayedLayer&)>& change :
       {std::function<void(ReplayedLayer&)>(give_back), {grow}}) {
    ReplayedLayer one;
    change(one);
    take_cuda_calls();
    EXPECT_TRUE(is_launched(one.calls_of({.hidden = one.hidden}, one.output)));
    one.warm_up();
    EXPECT_EQ(one.calls_of({.hidden = one.hidden}, one.output), kReplayed);
  }
}

TEST(Replays, ASettingTurnsThemOffAndOn) {
  ReplayedLayer one;
  {
    const ScopedSetting no_replays("MOEBIUS_REPLAYS", "0");
    one.warm_up();
    EXPECT_EQ(one.calls_of({.hidden = one.hidden}, one.output),
              (Calls{{"launch", 5}, {kEncode, 2}}));
  }
  one.warm_up();
  EXPECT_EQ(one.calls_of({.hidden = one.hidden}, one.output), kReplayed);
}

// The caller's routing is called each time, whatever it does.
TEST(Replays, PartsOfTheCallersAreCalledEachTime) {
  int times = 0;
  MoeLayerParts parts;
  parts.routing = [&](const Tensor&, const Tensor&, const Tensor&, const CallContext&) { ++times; };
  ReplayedLayer one(std::move(parts));
  one.calls_of({.hidden = one.hidden}, one.output);
  EXPECT_EQ(times, 7);
}

// Calls by turns of more kinds than are remembered are not recorded again and again.
TEST(Replays, ManyKindsByTurnsAreLaunched) {
  ReplayedLayer one;
  std::vector<Tensor> outputs(9);
  for (int round = 0; round < 8; ++round) {
    for (Tensor& output : outputs) {
      output = output ? output : one.tensor();
      EXPECT_EQ(one.calls_of({.hidden = one.hidden}, output).count("cudaGraphInstantiate"), 0u);
    }
  }
}

// The first call makes room in the workspaces, so the key of the others is another.
TEST(Replays, ManyTokensAreReplayed) {
  ReplayedLayer one;
  const Tensor many = Tensor::zeros({1024, kHidden}, DType::kBF16, one.stream.device());
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(one.calls_of({.hidden = many}, many).count("cudaGraphLaunch"), i < 5 ? 0U : 1U);
  }
}

// Ids that a call brings are part of what repeats.
TEST(Replays, CallsThatBringIdsAreReplayedByThem) {
  ReplayedLayer one;
  const auto ids = [&] { return Tensor::zeros({4, kTopk}, DType::kI32, one.stream.device()); };
  const MoeLayerInput given{
      .hidden = one.hidden,
      .topk_ids = ids(),
      .topk_weights = Tensor::zeros({4, kTopk}, DType::kF32, one.stream.device())};
  for (int i = 0; i < 6; ++i) {
    one.calls_of(given, one.output);
  }
  EXPECT_EQ(one.calls_of(given, one.output), kReplayed);
  MoeLayerInput other = given;
  other.topk_ids = ids();
  EXPECT_NE(one.calls_of(other, one.output), kReplayed);
}

// Workspaces that another layer's call has are refused, as they are where kernels are launched.
TEST(Replays, WorkspacesOfACallUnderWayAreRefused) {
  ReplayedLayer one;
  {
    const std::shared_ptr<void> of_layer = one.workspaces.hold(0, WorkspaceSlot::kLayer);
    EXPECT_THROW(one.layer.forward(one.hidden, one.output, one.context), InvalidArgument);
    EXPECT_EQ(take_cuda_calls().count("cudaGraphLaunch"), 0U);
  }
  {
    const std::shared_ptr<void> of_kernel = one.workspaces.hold(0, WorkspaceSlot::kPrepare);
    EXPECT_THROW(one.layer.forward(one.hidden, one.output, one.context), InvalidArgument);
    EXPECT_EQ(take_cuda_calls().count("cudaGraphLaunch"), 0U);
  }
  EXPECT_EQ(one.calls_of({.hidden = one.hidden}, one.output), kReplayed);
}

// A rank alone, and what it dispatches and combines.
struct LowLatencyRank {
  LowLatencyDispatchInput input() const { return {.x = x, .topk_ids = ids}; }
  Pending<LowLatencyCombineOutput> start_combine(const LowLatencyDispatchOutput& rows) {
    return transport.combine_async({.x = rows.x, .topk_ids = ids, .topk_weights = weights},
                                   *rows.handle, stream, sums);
  }

  std::unique_ptr<Group> group =
      make_cuda_group(std::move(make_thread_groups(1).front()), Device::cuda(0));
  Stream stream = Stream::cuda(0);
  LowLatency transport{
      *group, ExpertPlacement::linear(4, 1), {.max_tokens = 8, .hidden = kHidden, .topk = 2}};
  Tensor x = Tensor::zeros({1, kHidden}, DType::kBF16, stream.device());
  Tensor ids = Tensor::zeros({1, 2}, DType::kI32, stream.device());
  Tensor weights = Tensor::zeros({1, 2}, DType::kF32, stream.device());
  Tensor sums = Tensor::zeros({1, kHidden}, DType::kBF16, stream.device());
};

TEST(HostCalls, EachHalfOfLowLatencyAsksForOneLaunchAndNothingElse) {
  LowLatencyRank rank;
  rank.transport.dispatch(rank.input(), rank.stream);  // it makes memory
  rank.transport.dispatch(rank.input(), rank.stream);
  const Calls nothing, launch{{"launch", 1}};
  take_cuda_calls();
  auto pending = rank.transport.dispatch_async(rank.input(), rank.stream);
  EXPECT_EQ(take_cuda_calls(), launch);
  pending.hook();
  EXPECT_EQ(take_cuda_calls(), launch);
  pending.hook();
  const LowLatencyDispatchOutput rows = pending.finish();
  EXPECT_EQ(take_cuda_calls(), nothing);
  auto combining = rank.start_combine(rows);
  EXPECT_EQ(take_cuda_calls(), launch);
  EXPECT_EQ(combining.receive().x.raw(), rank.sums.raw());  // nobody has called the hook
  EXPECT_EQ(take_cuda_calls(), launch);
  combining.hook();
  EXPECT_EQ(take_cuda_calls(), nothing);
}

// The handle keeps what the second half needs, and a place that nobody has any more is free.
TEST(HostCalls, HalvesOfLowLatencyThatAreDroppedLaunchNothing) {
  LowLatencyRank rank;
  for (int i = 0; i < 3; ++i) {
    auto rows = rank.transport.dispatch(rank.input(), rank.stream);
    auto combining = rank.start_combine(rows);
    const std::weak_ptr<const LowLatencyHandle> handle = rows.handle;
    rows = {};
    EXPECT_FALSE(handle.expired());
    take_cuda_calls();
    combining = {};
    EXPECT_TRUE(handle.expired());
    EXPECT_EQ(take_cuda_calls(), Calls());
  }
}

TEST(HostCalls, EventsAreUsedAgain) {
  const Stream stream = Stream::cuda(0);
  stream.record();
  take_cuda_calls();
  stream.record();
  EXPECT_EQ(take_cuda_calls(), (Calls{{"cudaEventRecord", 1}, {"cudaStreamGetCaptureInfo", 1}}));
}

}  // namespace
}  // namespace moebius::testing
