// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The whole layer on GPUs gives the rows of one rank on the CPU within a tolerance, and the same
// bits in every call.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "moebius/graph.h"
#include "tests/comm/gpu_ranks.h"
#include "tests/layer/cuda_rank_layer.h"
#include "tests/layer/fakes.h"
#include "tests/layer/tensors.h"

namespace moebius::testing {
namespace {

constexpr LayerKind kOverRanks[] = {
    {.name = "summed", .tp = 0},  // 0: all ranks
    {.name = "all-gather", .backend = All2AllBackend::kAllGatherReduceScatter},
    {.name = "monolithic",
     .backend = All2AllBackend::kAllGatherReduceScatter,
     .is_monolithic = true},
    {.name = "high throughput", .backend = All2AllBackend::kHighThroughput},
    {.name = "low latency", .backend = All2AllBackend::kLowLatency},
    {.name = "all-gather, micro-batches",
     .backend = All2AllBackend::kAllGatherReduceScatter,
     .kernel = {.microbatches = 2}},
    {.name = "high throughput, micro-batches",
     .backend = All2AllBackend::kHighThroughput,
     .kernel = {.microbatches = 3}},
    {.name = "high throughput, micro-batches, 8 SMs",
     .backend = All2AllBackend::kHighThroughput,
     .kernel = {.microbatches = 2},
     .comm_sms = 8},
    {.name = "high throughput, results in parts",
     .backend = All2AllBackend::kHighThroughput,
     .kernel = {.combine_parts = 2}},
    {.name = "high throughput with a capacity, results in parts",
     .backend = All2AllBackend::kHighThroughput,
     .kernel = {.combine_parts = 2},
     .comm_sms = 8,
     .capacity = 0},
    {.name = "high throughput with a capacity",
     .backend = All2AllBackend::kHighThroughput,
     .capacity = 0},
    {.name = "high throughput with a capacity, micro-batches",
     .backend = All2AllBackend::kHighThroughput,
     .kernel = {.microbatches = 3},
     .capacity = 40},
    {.name = "low latency, micro-batches",
     .backend = All2AllBackend::kLowLatency,
     .kernel = {.microbatches = 3}},
    {.name = "low latency, sums per rank",
     .backend = All2AllBackend::kLowLatency,
     .low_latency_sum = LowLatencySum::kRanks},
    {.name = "low latency, sums per rank, micro-batches",
     .backend = All2AllBackend::kLowLatency,
     .kernel = {.microbatches = 3},
     .low_latency_sum = LowLatencySum::kRanks},
    {.name = "high throughput, tp", .backend = All2AllBackend::kHighThroughput, .tp = 0},
    {.name = "low latency, tp", .backend = All2AllBackend::kLowLatency, .tp = 0},
};

class CudaLayer : public GpuTest {};

TEST_F(CudaLayer, OneRankGivesTheRowsOfTheCpu) {
  const Place place{Device::cuda(0)};
  const LayerKind kinds[] = {
      {.name = "standard"},
      {.name = "batched", .format = ActivationFormat::kBatched},
      {.name = "chunks", .kernel = {.chunk_tokens = 5}},
      {.name = "micro-batches", .kernel = {.microbatches = 3}},
  };
  for (const LayerKind& kind : kinds) {
    RankLayer rank(kind, {}, place, nullptr);
    EXPECT_EQ(rank.layer->kernel().experts().name(), "cuda");
    for (const int64_t num_tokens : {1, 0, 20, 7}) {  // batched: 20 are three pieces
      SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(num_tokens) + " tokens");
      const Tensor hidden = random_tensor({num_tokens, kHidden}, DType::kBF16, 11);
      const Expected expected = on_one_cpu(hidden);
      const Tensor output = rank.forward(hidden);
      expect_rows(output, expected.output);
      expect_same_bits(rank.layer->expert_load(), expected.load);
      expect_same_bits(rank.layer->local_expert_load(), expected.load);
      expect_same_bits(rank.forward(hidden), output);
      // Hidden states and output may have another dtype.
      expect_rows(convert(rank.forward(convert(hidden, DType::kF32), DType::kF32), DType::kBF16),
                  expected.output);
    }
  }
}

// A layer on the GPU refuses tensors on the CPU before anything is enqueued, and vice versa.
TEST_F(CudaLayer, RefusesTensorsOnTheOtherDevice) {
  const Tensor hidden_here = random_tensor({3, kHidden}, DType::kBF16, 11);
  const LayerKind kind{.name = "standard"};
  for (const Place& place : {Place(), Place(Device::cuda(0))}) {
    const Place other = place.device().is_cpu() ? Place(Device::cuda(0)) : Place();
    const std::string wrong = to_string(other.device());
    const std::string right = to_string(place.device());
    SCOPED_TRACE("layer on " + right);
    RankLayer rank(kind, {}, place, nullptr);
    const auto refusal = [&](const Place& in, const Place& out, DType dtype, const Stream& stream) {
      const Tensor hidden = in.take(hidden_here);
      const Tensor output = Tensor::empty(hidden.shape(), dtype, out.device());
      CallContext context = rank.context();
      context.stream = stream;
      return message_of<Error>([&] { rank.layer->forward(hidden, output, context); });
    };
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      expect_mentions(refusal(other, place, dtype, place.stream),
                      {"device of hidden is " + wrong, right});
      expect_mentions(refusal(place, other, dtype, place.stream),
                      {"device of output is " + wrong, right});
      expect_mentions(refusal(place, place, dtype, other.stream),
                      {"device of the stream is " + wrong, right});
      EXPECT_EQ(refusal(place, place, dtype, place.stream), "no error");
    }
    const Tensor ids = Tensor::zeros({3}, DType::kI32, place.device());
    expect_error({"no adapters"}, [&] {
      const Tensor hidden = place.take(hidden_here);
      rank.layer->forward({.hidden = hidden, .lora_ids = ids}, hidden, rank.context());
    });
  }
}

// Records the bound on SMs that each call of real experts gets.
class NotedSms final : public ForwardingExperts {
 public:
  using ForwardingExperts::ForwardingExperts;
  mutable std::vector<int> noted;

 private:
  void note(const ExpertsInput& input) const override { noted.push_back(input.max_sms); }
};

TEST_F(CudaLayer, MicroBatchesTakeNoMoreSmsThanTheCallMay) {
  constexpr int64_t kTokens = 8;
  const Place place{Device::cuda(0)};
  MoeLayerWeights weights = weights_of({});
  ExpertsDesc desc;
  desc.num_experts = desc.num_local_experts = kExperts;
  desc.topk = kTopk;
  desc.hidden = kHidden;
  desc.intermediate = kIntermediate;
  desc.activation = weights.activation;
  auto experts =
      std::make_unique<NotedSms>(make_experts(desc, std::move(weights.experts), place.stream));
  const NotedSms& noted = *experts;
  ModularKernel kernel(make_no_ep(), std::move(experts), nullptr, nullptr,
                       {.microbatches = 2, .min_microbatch_tokens = 0});
  WorkspacePool pool;
  KernelInput input;
  input.num_experts = kExperts;
  input.hidden = place.take(random_tensor({kTokens, kHidden}, DType::kBF16, 11));
  input.topk_ids = place.take(random_ids(kTokens, kTopk, kExperts, 12));
  input.topk_weights = place.take(random_tensor({kTokens, kTopk}, DType::kF32, 13));
  const Tensor output = Tensor::empty({kTokens, kHidden}, DType::kBF16, place.device());
  CallContext context{place.stream, &pool};
  context.max_sms = 40;
  kernel.forward(input, output, {}, context);
  place.stream.synchronize();
  EXPECT_EQ(noted.noted, (std::vector<int>{40, 40}));
}

TEST_F(CudaLayer, OutOfMemorySaysHowMuch) {
  expect_error({"out of memory", "70368744177664", "cuda:0", "free"},
               [] { Tensor::empty({int64_t{1} << 46}, DType::kU8, Device::cuda(0)); });
}

class CudaLayerRanks : public GpuRanksTest {};

// All kinds run in one group, because an NCCL group takes half a second to set up.
TEST_P(CudaLayerRanks, EveryBackendGivesTheRowsOfOneCpu) {
  const int num_ranks = GetParam().num_ranks;
  // Ranks of a TP group bring the same tokens; 13 are two pieces of a batched call.
  const auto hidden_of = [&](int dp_rank) {
    return random_tensor({(dp_rank * 7 + 13) % 17, kHidden}, DType::kBF16, 50 + dp_rank);
  };
  std::vector<Expected> expected;  // by data-parallel rank
  for (int dp_rank = 0; dp_rank < num_ranks; ++dp_rank) {
    expected.push_back(on_one_cpu(hidden_of(dp_rank)));
  }
  run([&](Group& group) {
    for (const LayerKind& kind : kOverRanks) {
      SCOPED_TRACE(std::string(kind.name) + ", rank " + std::to_string(group.rank()));
      const int rank = group.rank();
      const int tp = kind.tp == 0 ? num_ranks : 1;
      const int dp = num_ranks / tp;
      const auto parallel = ParallelConfig::make(tp, rank % tp, dp, rank / tp, true, kind.backend);
      RankLayer layer(kind, parallel, Place(group.device()), &group);
      const Tensor hidden = hidden_of(rank / tp);
      const Tensor output = layer.forward(hidden);
      const Tensor own_load = layer.layer->local_expert_load();
      expect_rows(output, expected[static_cast<size_t>(rank / tp)].output);
      expect_same_bits(layer.forward(hidden), output);
      const ExpertRange own = expert_range(kExperts, parallel.ep_size, parallel.ep_rank);
      for (int64_t e = own.begin; e < own.end; ++e) {
        int64_t load = 0;
        for (int dp_rank = 0; dp_rank < dp; ++dp_rank) {
          load += expected[static_cast<size_t>(dp_rank)].load.data<int64_t>()[e];
        }
        EXPECT_EQ(own_load.data<int64_t>()[e - own.begin], load) << e;
      }
      group.barrier("end");
    }
  });
}

// Layers follow each other as in a model.  If each had side streams of its own, there would be more
// streams than a shared GPU has queues.
TEST_P(CudaLayerRanks, LayersFollowEachOtherOnOneStream) {
  constexpr int kLayers = 6;
  run([&](Group& group) {
    for (const LayerKind& kind :
         {LayerKind{.name = "high throughput, results in parts",
         .backend = All2AllBackend::kHighThroughput,
         .kernel = {.combine_parts = 2},
         .capacity = 0},
          LayerKind{.name = "low latency", .backend = All2AllBackend::kLowLatency}}) {
      SCOPED_TRACE(std::string(kind.name) + ", rank " + std::to_string(group.rank()));
      const Place place(group.device());
      const auto parallel =
          ParallelConfig::make(1, 0, group.size(), group.rank(), true, kind.backend);
      std::vector<std::unique_ptr<RankLayer>> layers;
      for (int i = 0; i < kLayers; ++i) {
        layers.push_back(std::make_unique<RankLayer>(kind, parallel, place, &group));
      }
      const Tensor hidden =
          place.take(random_tensor({8, kHidden}, DType::kBF16, 70 + group.rank()));
      std::vector<Tensor> outputs;
      for (const auto& layer : layers) {
        outputs.push_back(Tensor::empty(hidden.shape(), DType::kBF16, place.device()));
        layer->layer->forward(hidden, outputs.back(), layer->context());
      }
      const Tensor first = place.bring(outputs.front());
      for (const Tensor& output : outputs) {
        expect_same_bits(place.bring(output), first);
      }
      for (const auto& layer : layers) {
        layer->layer->check();
      }
      group.barrier("end");
    }
  });
}

// Parts are groups of columns, and the sum of a column does not depend on other columns.
TEST_P(CudaLayerRanks, ResultsInPartsHaveTheBitsOfWholeOnes) {
  run([&](Group& group) {
    const Tensor hidden = random_tensor({group.rank() == 1 ? 0 : 200 + group.rank(), kHidden},
                                        DType::kBF16, 70 + group.rank());
    Tensor whole;
    for (const int parts : {1, 2, 64}) {  // with 64, as many as have 128 columns
      RankLayer layer({.name = "",
                       .backend = All2AllBackend::kHighThroughput,
                       .kernel = {.combine_parts = parts}},
                      group);
      const Tensor output = layer.forward(hidden);
      EXPECT_EQ(layer.layer->kernel().last_combine_parts(), std::min(parts, 2));
      if (parts == 1) {
        whole = output;
      }
      for (int call = 0; call < 3; ++call) {
        expect_same_bits(layer.forward(hidden), whole);
      }
      group.barrier("end");
    }
  });
}

// This covers shared experts, results whole and in parts, and rows in chunks, which have no waves.
TEST_P(CudaLayerRanks, RowsInWavesHaveTheBitsOfOthers) {
  run([&](Group& group) {
    const Tensor hidden = random_tensor({group.rank() == 1 ? 0 : 300 + group.rank(), kHidden},
                                        DType::kBF16, 90 + group.rank());
    Tensor at_once;
    for (const LayerKind& kind :
         {LayerKind{.name = "at once", .kernel = {.early_rows = 0}}, LayerKind{.name = "in waves"},
          LayerKind{.name = "in waves and parts", .kernel = {.combine_parts = 2}},
          LayerKind{.name = "in waves and chunks", .kernel = {.chunk_tokens = 100}}}) {
      SCOPED_TRACE(std::string(kind.name) + ", rank " + std::to_string(group.rank()));
      LayerKind own = kind;
      own.backend = All2AllBackend::kHighThroughput;
      own.kernel.early_rows = kind.kernel.early_rows.value_or(1);
      RankLayer layer(own, group);
      const ModularKernel& kernel = layer.layer->kernel();
      for (int call = 0; call < 5; ++call) {
        const Tensor output = layer.forward(hidden);
        EXPECT_EQ(kernel.last_rows_came_in_waves(),
                  own.kernel.early_rows > 0 && own.kernel.chunk_tokens == 0 &&
                      kernel.experts().traits().takes_arriving_rows);
        if (!at_once) {
          at_once = output;
        }
        expect_same_bits(output, at_once);
      }
      layer.layer->check();
      group.barrier("end");
    }
  });
}

// The number of rows that each rank gets if every rank brings `hidden_of(rank)`.
std::vector<int64_t> rows_by_rank(int num_ranks, const std::function<Tensor(int)>& hidden_of) {
  const Stream stream = Stream::cpu(1);
  MoeLayerWeights weights = weights_of({});
  const Router router(weights.router_config, weights.router);
  std::vector<int64_t> rows(static_cast<size_t>(num_ranks));
  for (int source = 0; source < num_ranks; ++source) {
    const Tensor hidden = hidden_of(source);
    const Tensor logits = Tensor::empty({hidden.dim(0), kExperts}, DType::kF32);
    const Tensor ids = Tensor::empty({hidden.dim(0), kTopk}, DType::kI32);
    router.logits(hidden, logits, stream);
    router.select(logits, ids, Tensor::empty(ids.shape(), DType::kF32), stream);
    for (int rank = 0; rank < num_ranks; ++rank) {
      const ExpertRange own = expert_range(kExperts, num_ranks, rank);
      for (int64_t t = 0; t < ids.dim(0); ++t) {
        const auto* id = ids.data<int32_t>() + t * kTopk;
        rows[static_cast<size_t>(rank)] +=
            std::any_of(id, id + kTopk, [&](int32_t e) { return e >= own.begin && e < own.end; });
      }
    }
  }
  return rows;
}

// The call must throw the CommError of a rank that has no room for its rows, with both numbers.
void expect_overflow(const std::function<void()>& call,
                     const std::vector<int64_t>& rows,
                     int64_t capacity) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const CommError& error) {
    ASSERT_GE(error.peer(), 0) << error.what();
    const int64_t found = rows[static_cast<size_t>(error.peer())];
    EXPECT_GT(found, capacity);
    expect_mentions(error.what(), {"rank " + std::to_string(error.peer()) +
                                       " has no room for all its rows: " + std::to_string(found),
                                   "expected at most " + std::to_string(capacity)});
  }
}

TEST_P(CudaLayerRanks, MoreRowsThanTheCapacityAreAnErrorOnEveryRank) {
  constexpr int64_t kTokens = 13;
  const int num_ranks = GetParam().num_ranks;
  const auto hidden_of = [](int rank, int64_t call) {
    return random_tensor({kTokens, kHidden}, DType::kBF16, 50 * call + rank);
  };
  const auto most_rows = [&](int64_t call) {
    const auto rows = rows_by_rank(num_ranks, [&](int rank) { return hidden_of(rank, call); });
    return *std::max_element(rows.begin(), rows.end());
  };
  // `least` is a call that fits exactly, and `most` one that does not fit.
  int64_t least = 0;
  int64_t most = 0;
  for (int64_t call = 1; call < 20; ++call) {
    least = most_rows(call) < most_rows(least) ? call : least;
    most = most_rows(call) > most_rows(most) ? call : most;
  }
  const auto rows = rows_by_rank(num_ranks, [&](int rank) { return hidden_of(rank, most); });
  ASSERT_TRUE(num_ranks == 1 || most_rows(least) < most_rows(most));
  run([&](Group& group) {
    const int rank = group.rank();
    const Tensor fits = hidden_of(rank, least);
    const Tensor overflows = hidden_of(rank, most);
    LayerKind kind = kCounted;
    RankLayer counted(kind, group);
    kind.capacity = num_ranks == 1 ? kTokens - 1 : most_rows(least);
    const auto expect_error = [&](const std::function<void()>& call) {
      expect_overflow(call, rows, *kind.capacity);
    };
    {
      RankLayer layer(kind, group);
      expect_error([&] { layer.forward(overflows); });
      expect_error([&] { layer.forward(overflows); });  // the layer cannot be used any more
      group.barrier("all have seen it");
    }
    if (num_ranks == 1) {  // every token is a row
      return;
    }
    RankLayer layer(kind, group);
    const Tensor in = layer.place.take(fits.clone());
    const Tensor out = Tensor::empty(in.shape(), DType::kBF16, in.device());
    const auto forward = [&] { layer.layer->forward(in, out, layer.context()); };
    forward();
    forward();
    const Graph graph(layer.place.stream, forward);
    group.barrier("graphs are made");
    const auto replay = [&](const Tensor& hidden) {
      copy(hidden, in, layer.place.stream);
      graph.launch();
      const Tensor result = layer.place.bring(out);
      layer.layer->check();
      return result;
    };
    expect_same_bits(replay(fits), counted.forward(fits));
    expect_error([&] { replay(overflows); });
    expect_error([&] { replay(fits); });
    group.barrier("all have seen it");
  });
}

INSTANTIATE_TEST_SUITE_P(All, CudaLayerRanks, on_gpu_ranks(), gpu_ranks_name);

}  // namespace
}  // namespace moebius::testing
