// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Layers on GPUs inside CUDA graphs: replays give the bits of calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/group/shared_device.h"
#include "core/cuda/runtime.h"
#include "moebius/graph.h"
#include "moebius/log.h"
#include "tests/comm/gpu_ranks.h"
#include "tests/layer/cuda_rank_layer.h"
#include "tests/layer/tensors.h"
#include "tests/scoped_setting.h"

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
  for (const LayerKind& kind : kOfOneRank) {
    for (const int64_t num_tokens : {1, 8, 20}) {
      SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(num_tokens) + " tokens");
      RankLayer rank(kind, {}, Place{Device::cuda(0)}, nullptr);
      expect_replays(rank, num_tokens, 31);
    }
  }
}

// Router, routed and shared experts are replaced between launches; the graph computes with the new
// ones, as a fresh layer does.
TEST_F(CudaLayerGraph, UpdatedWeightsAreSeenByAGraph) {
  for (const ActivationFormat format : {ActivationFormat::kStandard, ActivationFormat::kBatched}) {
    const LayerKind kind{.name = "update", .format = format};
    RankLayer rank(kind, {}, Place{Device::cuda(0)}, nullptr);
    const Tensor hidden = random_tensor({20, kHidden}, DType::kBF16, 35);
    const Tensor before = rank.forward(hidden);
    const Tensor in = rank.place.take(hidden);
    const Tensor out = Tensor::empty(in.shape(), DType::kBF16, in.device());
    rank.layer->forward(in, out, rank.context());
    const Graph graph(rank.place.stream, [&] { rank.layer->forward(in, out, rank.context()); });
    rank.layer->update_weights(other_weights_of({}), rank.place.stream);
    graph.launch();
    const Tensor after = rank.place.bring(out);
    MoeLayerOptions options;
    options.format = format;
    MoeLayer fresh(other_weights_of({}), options, rank.place.stream);
    const Tensor expected = Tensor::empty(in.shape(), DType::kBF16, in.device());
    fresh.forward(in, expected, rank.context());
    expect_same_bits(after, rank.place.bring(expected));
    expect_same_bits(rank.layer->expert_load(), fresh.expert_load());
    rank.layer->update_weights(weights_of({}), rank.place.stream);
    graph.launch();
    expect_same_bits(rank.place.bring(out), before);
  }
}

// A layer records calls that repeat by itself, and tells of replays what it tells of calls.  Kinds
// of calls come by turns, on another stream, and on the default stream, which cannot be captured.
TEST_F(CudaLayerGraph, CallsThatRepeatGiveTheirBits) {
  for (const LayerKind& kind : kOfOneRank) {
    RankLayer rank(kind, {}, Place{Device::cuda(0)}, nullptr);
    struct Repeated {
      Stream stream;
      Tensor hidden, expected, load, in, out;
    };
    const Stream other = Stream::cuda(0);
    std::atomic<int> num_refused{0};
    const ScopedSetting tells("MOEBIUS_LOG", "info");
    set_log_callback([&](LogLevel, std::string_view, std::string_view message) {
      num_refused += message.find("not replayed") != std::string_view::npos ? 1 : 0;
    });
    std::vector<Repeated> calls;
    for (const int64_t num_tokens : {1, 8, 20}) {
      for (const Stream& stream : {rank.place.stream, other, Stream::wrap_cuda(nullptr, 0)}) {
        if (calls.size() == 8) {
          break;
        }
        Repeated call;
        call.stream = stream;
        call.hidden = random_tensor({num_tokens, kHidden}, DType::kBF16, 40 + num_tokens);
        call.expected = rank.forward(call.hidden);
        call.load = rank.layer->expert_load();
        call.in = rank.place.take(call.hidden);
        call.out = Tensor::empty(call.in.shape(), DType::kBF16, call.in.device());
        calls.push_back(std::move(call));
      }
    }
    for (int round = 0; round < 8; ++round) {
      for (const Repeated& call : calls) {
        SCOPED_TRACE(std::string(kind.name) + ", round " + std::to_string(round));
        CallContext context = rank.context();
        context.stream = call.stream;
        rank.layer->forward(call.in, call.out, context);
        expect_same_bits(rank.layer->expert_load(), call.load);
        call.stream.synchronize();
        expect_same_bits(rank.place.bring(call.out), call.expected);
        copy(Tensor::zeros(call.out.shape(), DType::kBF16), call.out, rank.place.stream);
        rank.place.stream.synchronize();
      }
    }
    set_log_callback(nullptr);
    // Micro-batches, and batched calls of more tokens than there is room for, are parts.
    const bool has_parts =
        kind.kernel.microbatches > 1 || kind.format == ActivationFormat::kBatched;
    EXPECT_EQ(num_refused > 0, has_parts) << kind.name;
  }
}

// The graph of a call makes room for others behind work that takes longer than the calls.
TEST_F(CudaLayerGraph, GraphsMayGoWhileTheyAreUnderWay) {
  RankLayer rank({.name = "standard"}, {}, Place{Device::cuda(0)}, nullptr);
  const Tensor hidden = random_tensor({8, kHidden}, DType::kBF16, 44);
  const Tensor expected = rank.forward(hidden);
  const Tensor in = rank.place.take(hidden);
  const auto room = [&] { return Tensor::empty(in.shape(), DType::kBF16, rank.place.device()); };
  const Tensor out = room();
  for (int call = 0; call < 8; ++call) {
    rank.layer->forward(in, out, rank.context());
  }
  copy(Tensor::zeros(out.shape(), DType::kBF16), out, rank.place.stream);
  const Tensor from = Tensor::empty({int64_t{1} << 30}, DType::kU8, rank.place.device());
  const Tensor to = Tensor::empty(from.shape(), DType::kU8, rank.place.device());
  std::vector<Tensor> others;
  for (int i = 0; i < 9; ++i) {
    others.push_back(room());
  }
  rank.place.stream.synchronize();
  for (int i = 0; i < 20; ++i) {
    copy(from, to, rank.place.stream);
  }
  rank.layer->forward(in, out, rank.context());
  for (const Tensor& other : others) {
    rank.layer->forward(in, other, rank.context());
  }
  others.push_back(out);
  for (const Tensor& other : others) {
    expect_same_bits(rank.place.bring(other), expected);
  }
}

TEST_F(CudaLayerGraph, UpdatedWeightsAreSeenByCallsThatRepeat) {
  RankLayer rank({.name = "update"}, {}, Place{Device::cuda(0)}, nullptr);
  const Tensor in = rank.place.take(random_tensor({20, kHidden}, DType::kBF16, 45));
  const Tensor out = Tensor::empty(in.shape(), DType::kBF16, in.device());
  for (int call = 0; call < 8; ++call) {
    rank.layer->forward(in, out, rank.context());
  }
  rank.layer->update_weights(other_weights_of({}), rank.place.stream);
  rank.layer->forward(in, out, rank.context());
  MoeLayer fresh(other_weights_of({}), {}, rank.place.stream);
  const Tensor expected = Tensor::empty(in.shape(), DType::kBF16, in.device());
  fresh.forward(in, expected, rank.context());
  expect_same_bits(rank.place.bring(out), rank.place.bring(expected));
  expect_same_bits(rank.layer->expert_load(), fresh.expert_load());
}

// Ids of either width give the bits of the layer's own router, also in a graph.  Ids of no expert
// count as masked.
TEST_F(CudaLayerGraph, GivenIdsAreThoseOfTheRouter) {
  const Place place{Device::cuda(0)};
  RankLayer rank({.name = "ids"}, {}, place, nullptr);
  const Tensor hidden = random_tensor({20, kHidden}, DType::kBF16, 36);
  const Tensor expected = rank.forward(hidden);
  const Tensor in = place.take(hidden);
  const auto on_gpu = [&](const Shape& shape, DType dtype) {
    return Tensor::empty(shape, dtype, place.device());
  };
  const Tensor logits = on_gpu({20, kExperts}, DType::kF32);
  const Tensor ids = on_gpu({20, kTopk}, DType::kI32);
  const Tensor weights = on_gpu({20, kTopk}, DType::kF32);
  rank.layer->router()->logits(in, logits, place.stream);
  rank.layer->router()->select(logits, ids, weights, place.stream);
  const Tensor narrow = place.bring(ids);
  const Tensor wide = Tensor::empty(narrow.shape(), DType::kI64);
  std::copy_n(narrow.data<int32_t>(), narrow.numel(), wide.data<int64_t>());
  const Tensor out = on_gpu(in.shape(), DType::kBF16);
  for (const Tensor& given : {ids, place.take(wide)}) {
    SCOPED_TRACE(name(given.dtype()));
    const auto run = [&] {
      rank.layer->forward({.hidden = in, .topk_ids = given, .topk_weights = weights}, out,
                          rank.context());
    };
    run();
    expect_same_bits(place.bring(out), expected);
    run();
    const Graph graph(place.stream, run);
    graph.launch();
    expect_same_bits(place.bring(out), expected);
  }
  const auto run_with = [&](int64_t id) {
    wide.data<int64_t>()[0] = id;
    const Tensor given = place.take(wide);
    rank.layer->forward({.hidden = in, .topk_ids = given, .topk_weights = weights}, out,
                        rank.context());
    return place.bring(out);
  };
  const Tensor masked = run_with(-1);
  expect_same_bits(run_with(int64_t{1} << 32), masked);
  expect_same_bits(run_with(kExperts), masked);
}

class CudaLayerGraphRanks : public GpuRanksTest {
 protected:
  // True where more ranks share a GPU than can replay graphs there.  Then the test only checks that
  // layers say so.
  bool is_too_crowded_for_graphs(const LayerKind& kind) const {
    const int num_ranks = GetParam().num_ranks / GetParam().num_gpus;
    if (comm::can_replay_on_one_gpu(num_ranks, cuda::hardware_queues()).ok) {
      return false;
    }
    run([&](Group& group) {
      RankLayer layer(kind, group);
      EXPECT_FALSE(layer.layer->can_be_captured().ok);
      expect_mentions(layer.layer->can_be_captured().reason,
                      {std::to_string(num_ranks) + " ranks share a GPU", "at most 4"});
      group.barrier("end");
    });
    return true;
  }
  // Runs the body on every rank, unless that is so.
  void run_graphs(const LayerKind& kind, const std::function<void(Group&)>& body) const {
    if (!is_too_crowded_for_graphs(kind)) {
      run(body);
    }
  }
};

TEST_P(CudaLayerGraphRanks, LowLatencyIsCapturedByGraphs) {
  run_graphs({.name = "low latency", .backend = All2AllBackend::kLowLatency}, [&](Group& group) {
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
  run_graphs(kUncounted, [&](Group& group) {
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
  run_graphs(kUncounted, [&](Group& group) {
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

// The layer of a rank; ranks of a TP group bring the same tokens.
RankLayer layer_over_ranks(const LayerKind& kind, Group& group) {
  const int tp = kind.tp == 0 ? group.size() : 1;
  return {kind,
          ParallelConfig::make(tp, group.rank() % tp, group.size() / tp, group.rank() / tp, true,
                               kind.backend),
          Place(group.device()), &group};
}

constexpr LayerKind kAllGather{.name = "all-gather",
                               .backend = All2AllBackend::kAllGatherReduceScatter};

// Sums over ranks, all-gather and slices of a TP group are exchanges between the ranks' GPUs.
TEST_P(CudaLayerGraphRanks, ExchangesAreCapturedByGraphs) {
  if (GetParam().provider != "peer") {
    GTEST_SKIP() << "skipped: graphs hold exchanges of peer groups";
  }
  if (is_too_crowded_for_graphs(kAllGather)) {
    return;
  }
  LayerKind parts = kAllGather;
  parts.kernel.microbatches = 2;
  LayerKind monolithic = kAllGather;
  monolithic.is_monolithic = true;
  LayerKind sliced = kUncounted;
  sliced.tp = 0;
  const LayerKind kinds[] = {
      {.name = "summed", .tp = 0},
      kAllGather,
      parts,
      monolithic,
      sliced,
      {.name = "low latency, tp", .backend = All2AllBackend::kLowLatency, .tp = 0}};
  run([&](Group& group) {
    for (const LayerKind& kind : kinds) {
      for (const int64_t fewest : {0, 3, 13}) {
        SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(fewest) + " tokens");
        const bool is_tp = kind.tp == 0;
        RankLayer layer = layer_over_ranks(kind, group);
        expect_replays(layer, fewest + (is_tp ? 0 : group.rank() % 2),
                       is_tp ? 7 : 100 * group.rank(), &group);
        group.barrier("end");
      }
    }
  });
}

// A layer over all-gather whose call a graph may record, since it has been made twice.
struct GatheredCall {
  RankLayer rank;
  Tensor in = rank.place.take(random_tensor({3, kHidden}, DType::kBF16, 5));
  Tensor out = Tensor::empty(in.shape(), DType::kBF16, in.device());

  explicit GatheredCall(Group& group) : rank(kAllGather, group) {
    forward();
    forward();
  }
  void forward() { rank.layer->forward(in, out, rank.context()); }
  Graph record() {
    return Graph(rank.place.stream, [this] { forward(); });
  }
};

// Otherwise a rank would wait for what the others do at once, and they for what it does later.
TEST_P(CudaLayerGraphRanks, RanksRecordExchangesTogether) {
  if (GetParam().provider != "peer" || GetParam().num_ranks == 1 ||
      is_too_crowded_for_graphs(kAllGather)) {
    GTEST_SKIP() << "skipped: one rank, or no graphs of exchanges";
  }
  run([&](Group& group) {
    GatheredCall call(group);
    call.rank.place.stream.synchronize();
    expect_error({"a graph", "expected all ranks to do the same"}, [&] {
      if (group.rank() == 0) {
        call.record();
      } else {
        call.forward();
      }
    });
    group.barrier("end");
  });
}

// A rank that launches its graph alone goes on after the timeout, and says so.
TEST_P(CudaLayerGraphRanks, AnExchangeWithoutTheOthersEnds) {
  constexpr std::chrono::milliseconds kTimeout{2000};
  if (GetParam().provider != "peer" || GetParam().num_ranks == 1 ||
      is_too_crowded_for_graphs(kAllGather)) {
    GTEST_SKIP() << "skipped: one rank, or no graphs of exchanges";
  }
  const auto body = [&](Group& group) {
    GatheredCall call(group);
    const Graph graph = call.record();
    group.barrier("graphs are made");
    if (group.rank() == 0) {
      graph.launch();
      call.rank.place.stream.synchronize();
      EXPECT_THROW(call.rank.layer->check(), CommError);
    } else {
      std::this_thread::sleep_for(kTimeout / 2);  // rank 0 comes to the end after the whole timeout
    }
    group.barrier("end");
  };
  run_gpu_ranks(GetParam(), body, kTimeout);
}

TEST_P(CudaLayerGraphRanks, WhatWaitsForHostsSaysThatItCannotBeCaptured) {
  run([&](Group& group) {
    RankLayer layer(kCounted, group);
    EXPECT_FALSE(layer.layer->can_be_captured().ok);
    expect_mentions(layer.layer->can_be_captured().reason,
                    {"number of rows, unless the layer has a"});
    if (group.name() == "nccl") {
      RankLayer gathered(kAllGather, group);
      expect_mentions(gathered.layer->can_be_captured().reason, {"deadline from the host"});
    }
    group.barrier("end");
  });
}

INSTANTIATE_TEST_SUITE_P(All, CudaLayerGraphRanks, on_gpu_ranks(), gpu_ranks_name);

}  // namespace
}  // namespace moebius::testing
