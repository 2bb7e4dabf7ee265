// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Counts what calls on a GPU ask of the CUDA runtime, which is most of what they cost the host.  A
// launch takes 2 to 3 us, and recording an event or waiting for one half a microsecond.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "moebius/group.h"
#include "moebius/low_latency.h"
#include "tests/fake_cuda.h"
#include "tests/layer/cuda_rank_layer.h"

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

// The calls of the runtime that one more layer call makes, after some.
Calls all_steady_calls(bool has_shared, int64_t num_tokens) {
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
