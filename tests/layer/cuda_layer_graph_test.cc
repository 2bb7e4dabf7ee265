// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Layers on GPUs inside CUDA graphs: replays give the bits of calls.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/group/shared_device.h"
#include "core/cuda/runtime.h"
#include "moebius/graph.h"
#include "tests/comm/gpu_ranks.h"
#include "tests/layer/cuda_rank_layer.h"
#include "tests/layer/tensors.h"

namespace moebius::testing {
namespace {

class CudaLayerGraph : public GpuTest {};

// Records a call and replays it on other hidden states.  The bits are those of plain calls.
void expect_replays(RankLayer& rank, int64_t num_tokens, int64_t seed, Group* group = nullptr) {
  const auto hidden = [&](int64_t call) {
    return random_tensor({num_tokens, kHidden}, DType::kBF16, seed + call);
  };
  std::vector<Tensor> expected;
  for (const int call : {0, 1, 2, 3}) {
    expected.push_back(rank.forward(hidden(call)));
  }
  const Tensor load = rank.layer->expert_load();
  const Tensor in = rank.place.take(hidden(0));
  const Tensor out = Tensor::empty(in.shape(), DType::kBF16, in.device());
  rank.layer->forward(in, out, rank.context());
  ASSERT_TRUE(rank.layer->can_be_captured().ok) << rank.layer->can_be_captured().reason;
  const Graph graph(rank.place.stream, [&] { rank.layer->forward(in, out, rank.context()); });
  if (group != nullptr) {
    group->barrier("graphs are made");
  }
  for (const int call : {1, 2, 2, 3}) {
    const Tensor next = hidden(call);
    copy(next, in, rank.place.stream);
    graph.launch();
    const Tensor actual = rank.place.bring(out);
    rank.layer->check();
    expect_same_bits(actual, expected[static_cast<size_t>(call)]);
  }
  expect_same_bits(rank.layer->expert_load(), load);
}

TEST_F(CudaLayerGraph, OneRankIsCapturedByGraphs) {
  const LayerKind kinds[] = {
      {.name = "standard"},
      {.name = "batched", .format = ActivationFormat::kBatched},
      {.name = "micro-batches", .kernel = {.microbatches = 2}},
  };
  for (const LayerKind& kind : kinds) {
    for (const int64_t num_tokens : {1, 8, 20}) {
      SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(num_tokens) + " tokens");
      RankLayer rank(kind, {}, Place{Device::cuda(0)}, nullptr);
      expect_replays(rank, num_tokens, 31);
    }
  }
}

class CudaLayerGraphRanks : public GpuRanksTest {
 protected:
  // True where more ranks share a GPU than can replay graphs there.  Then the test only checks that
  // layers say so.
  bool is_too_crowded_for_graphs(const LayerKind& kind) const {
    if (comm::can_replay_on_one_gpu(GetParam().num_ranks / GetParam().num_gpus,
                                    cuda::hardware_queues())
            .ok) {
      return false;
    }
    run([&](Group& group) {
      RankLayer layer(kind, group);
      EXPECT_FALSE(layer.layer->can_be_captured().ok);
      expect_mentions(layer.layer->can_be_captured().reason, {"8 ranks share a GPU", "at most 5"});
      group.barrier("end");
    });
    return true;
  }
};

TEST_P(CudaLayerGraphRanks, LowLatencyIsCapturedByGraphs) {
  if (is_too_crowded_for_graphs({.name = "low latency", .backend = All2AllBackend::kLowLatency})) {
    return;
  }
  run([&](Group& group) {
    for (const int microbatches : {1, 2}) {
      const LayerKind kind{.name = "low latency",
                           .backend = All2AllBackend::kLowLatency,
                           .kernel = {.microbatches = microbatches}};
      for (const int64_t num_tokens : {3, 13}) {
        RankLayer layer(kind, group);
        expect_replays(layer, num_tokens, 100 * group.rank(), &group);
        group.barrier("end");
      }
    }
  });
}

TEST_P(CudaLayerGraphRanks, HighThroughputIsCapturedByGraphs) {
  if (is_too_crowded_for_graphs(kUncounted)) {
    return;
  }
  run([&](Group& group) {
    RankLayer counted(kCounted, group);
    LayerKind kinds[] = {kUncounted, kUncounted, kUncounted};
    kinds[1].kernel.microbatches = 2;
    kinds[2].kernel.combine_parts = 2;
    for (const LayerKind& kind : kinds) {
      for (const int64_t fewest : {0, 3, 13}) {  // a rank has so many tokens, or one more
        SCOPED_TRACE(std::to_string(kind.kernel.microbatches) + " micro-batches, " +
                     std::to_string(kind.kernel.combine_parts) + " parts, " +
                     std::to_string(fewest));
        const int64_t num_tokens = fewest + group.rank() % 2;
        const auto seed = 100 * group.rank();
        RankLayer layer(kind, group);
        const Tensor hidden = random_tensor({num_tokens, kHidden}, DType::kBF16, seed);
        const Tensor output = layer.forward(hidden);
        expect_same_bits(output, counted.forward(hidden));
        expect_rows(output, on_one_cpu(hidden).output);
        expect_replays(layer, num_tokens, seed, &group);
        group.barrier("end");
      }
    }
  });
}

TEST_P(CudaLayerGraphRanks, GraphsOfHighThroughputOutliveLargerCalls) {
  if (is_too_crowded_for_graphs(kUncounted)) {
    return;
  }
  run([&](Group& group) {
    RankLayer layer(kUncounted, group);
    struct Call {
      WorkspacePool workspaces;
      Tensor in, out, expected;
      std::unique_ptr<Graph> graph;
    };
    std::map<int64_t, Call> calls;
    for (const int64_t num_tokens : {2, 9, 300}) {
      Call& call = calls[num_tokens];
      const auto seed = num_tokens + group.rank();
      call.in = layer.place.take(random_tensor({num_tokens, kHidden}, DType::kBF16, seed));
      call.out = Tensor::empty(call.in.shape(), DType::kBF16, call.in.device());
      const auto forward = [&] {
        layer.layer->forward(call.in, call.out, {layer.place.stream, &call.workspaces});
      };
      forward();
      forward();
      call.expected = layer.place.bring(call.out);
      call.graph = std::make_unique<Graph>(layer.place.stream, forward);
      group.barrier("graphs are made");
      for (auto& [smaller, other] : calls) {
        copy(layer.place.take(filled(other.out.shape(), DType::kBF16, {-7})), other.out,
             layer.place.stream);
        other.graph->launch();
        expect_same_bits(layer.place.bring(other.out), other.expected);
        layer.layer->check();
      }
    }
    group.barrier("end");
  });
}

TEST_P(CudaLayerGraphRanks, WhatWaitsForHostsSaysThatItCannotBeCaptured) {
  run([&](Group& group) {
    for (const auto& [backend, word] :
         {std::pair(All2AllBackend::kHighThroughput, "number of rows, unless the layer has a"),
          std::pair(All2AllBackend::kAllGatherReduceScatter, "streams of several ranks")}) {
      RankLayer layer({.name = "", .backend = backend}, group);
      EXPECT_FALSE(layer.layer->can_be_captured().ok);
      expect_mentions(layer.layer->can_be_captured().reason, {word});
      group.barrier("end");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All,
                         CudaLayerGraphRanks,
                         ::testing::ValuesIn(gpu_ranks()),
                         gpu_ranks_name);

}  // namespace
}  // namespace moebius::testing
