// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The whole layer on GPUs: row by row what it is on one rank of the CPU, the same bits every time,
// and inside CUDA graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "comm/shared_gpu.h"
#include "core/cuda/runtime.h"
#include "moebius/graph.h"
#include "moebius/moe_layer.h"
#include "moebius/profile.h"
#include "tests/comm/gpu_ranks.h"
#include "tests/conformance/place.h"
#include "tests/layer/tensors.h"

namespace moebius::testing {
namespace {

constexpr int64_t kExperts = 10;
constexpr int64_t kTopk = 3;
constexpr int64_t kHidden = 256;
constexpr int64_t kIntermediate = 128;
constexpr int64_t kMaxTokens = 8;  // per rank and call of a batched backend
constexpr double kRowTolerance = 1e-2;

struct Kind {
  const char* name;
  All2AllBackend backend = All2AllBackend::kNone;
  int tp = 1;
  ActivationFormat format = ActivationFormat::kStandard;
  bool is_monolithic = false;
  int64_t chunk_tokens = 0;
  int microbatches = 1;
  int comm_sms = 0;
  std::optional<int64_t> capacity = std::nullopt;
  int combine_parts = 0;
};
constexpr Kind kOverRanks[] = {
    {.name = "summed", .tp = 0},  // 0: all ranks
    {.name = "all-gather", .backend = All2AllBackend::kAllGatherReduceScatter},
    {.name = "monolithic",
     .backend = All2AllBackend::kAllGatherReduceScatter,
     .is_monolithic = true},
    {.name = "high throughput", .backend = All2AllBackend::kHighThroughput},
    {.name = "low latency", .backend = All2AllBackend::kLowLatency},
    {.name = "all-gather, micro-batches",
     .backend = All2AllBackend::kAllGatherReduceScatter,
     .microbatches = 2},
    {.name = "high throughput, micro-batches",
     .backend = All2AllBackend::kHighThroughput,
     .microbatches = 3},
    {.name = "high throughput, micro-batches, 8 SMs",
     .backend = All2AllBackend::kHighThroughput,
     .microbatches = 2,
     .comm_sms = 8},
    {.name = "high throughput, results in parts",
     .backend = All2AllBackend::kHighThroughput,
     .combine_parts = 2},
    {.name = "high throughput with a capacity, results in parts",
     .backend = All2AllBackend::kHighThroughput,
     .comm_sms = 8,
     .capacity = 0,
     .combine_parts = 2},
    {.name = "high throughput with a capacity",
     .backend = All2AllBackend::kHighThroughput,
     .capacity = 0},
    {.name = "high throughput with a capacity, micro-batches",
     .backend = All2AllBackend::kHighThroughput,
     .microbatches = 3,
     .capacity = 40},
    {.name = "low latency, micro-batches",
     .backend = All2AllBackend::kLowLatency,
     .microbatches = 3},
    {.name = "high throughput, tp", .backend = All2AllBackend::kHighThroughput, .tp = 0},
    {.name = "low latency, tp", .backend = All2AllBackend::kLowLatency, .tp = 0},
};

// A rank's share, with shared experts behind a gate.
MoeLayerWeights weights_of(const ParallelConfig& parallel) {
  const ExpertRange own = expert_range(kExperts, parallel.ep_size, parallel.ep_rank);
  const auto share = [&](const Shape& shape, uint32_t seed) {
    return random_tensor(shape, DType::kBF16, seed, 0.2f).slice(own.begin, own.end);
  };
  MoeLayerWeights w;
  w.config.parallel = parallel;
  w.config.num_experts = kExperts;
  w.config.num_local_experts = own.size();
  w.config.experts_per_token = kTopk;
  w.config.hidden = kHidden;
  w.config.intermediate = kIntermediate;
  w.config.max_num_tokens = kMaxTokens;
  w.router_config.num_experts = kExperts;
  w.router_config.topk = kTopk;
  w.router_config.renormalize = true;
  w.router.gate = random_tensor({kExperts, kHidden}, DType::kBF16, 1, 0.3f);
  w.experts.w1 = share({kExperts, 2 * kIntermediate, kHidden}, 2);
  w.experts.w2 = share({kExperts, kHidden, kIntermediate}, 3);
  w.shared.w1 = random_tensor({1, 2 * kIntermediate, kHidden}, DType::kBF16, 4, 0.2f);
  w.shared.w2 = random_tensor({1, kHidden, kIntermediate}, DType::kBF16, 5, 0.2f);
  w.shared_intermediate = kIntermediate;
  w.shared_gate = random_tensor({1, kHidden}, DType::kBF16, 6, 0.1f);
  return w;
}

struct Expected {
  Tensor output;
  Tensor load;
};
Expected on_one_cpu(const Tensor& hidden) {
  MoeLayerOptions options;
  options.experts = "cpu_portable";
  const Stream stream = Stream::cpu();
  MoeLayer layer(weights_of({}), options, stream);
  WorkspacePool workspaces;
  const Tensor output = Tensor::empty(hidden.shape(), DType::kBF16);
  layer.forward(hidden, output, {stream, &workspaces, 0, nullptr});
  return {output, layer.expert_load()};
}

void expect_rows(const Tensor& actual, const Tensor& expected) {
  ASSERT_EQ(actual.shape(), expected.shape());
  for (int64_t t = 0; t < expected.dim(0); ++t) {
    ASSERT_LE(relative_error(actual[t], expected[t]), kRowTolerance) << "row " << t;
  }
}

// A rank's layer with what its calls need.
struct RankLayer {
  RankLayer(const Kind& kind, const ParallelConfig& parallel, const Place& at, Group* group)
      : place(at) {
    MoeLayerOptions options;
    options.format = kind.format;
    options.monolithic = kind.is_monolithic;
    options.chunk_tokens = kind.chunk_tokens;
    options.microbatches = kind.microbatches;
    options.min_microbatch_tokens = 0;
    options.comm_sms = kind.comm_sms;
    options.capacity = kind.capacity;
    options.combine_parts = kind.combine_parts;
    layer = std::make_unique<MoeLayer>(weights_of(parallel), options, place.stream, group);
  }
  CallContext context() { return {place.stream, &workspaces, 0, nullptr}; }
  Tensor forward(const Tensor& hidden, DType output_dtype = DType::kBF16) {
    const Tensor output = Tensor::empty(hidden.shape(), output_dtype, place.device());
    layer->forward(place.take(hidden), output, context());
    const Tensor here = place.bring(output);
    layer->check();
    return here;
  }

  Place place;
  WorkspacePool workspaces;
  std::unique_ptr<MoeLayer> layer;
};

class CudaLayer : public GpuTest {};

TEST_F(CudaLayer, OneRankGivesTheRowsOfTheCpu) {
  const Place place{Device::cuda(0)};
  const Kind kinds[] = {
      {.name = "standard"},
      {.name = "batched", .format = ActivationFormat::kBatched},
      {.name = "chunks", .chunk_tokens = 5},
      {.name = "micro-batches", .microbatches = 3},
  };
  for (const Kind& kind : kinds) {
    RankLayer rank(kind, {}, place, nullptr);
    EXPECT_EQ(rank.layer->kernel().experts().implementation(), "cuda");
    for (const int64_t num_tokens : {1, 0, 20, 7}) {  // batched: 20 are three pieces
      SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(num_tokens) + " tokens");
      const Tensor hidden = random_tensor({num_tokens, kHidden}, DType::kBF16, 11);
      const Expected expected = on_one_cpu(hidden);
      const Tensor output = rank.forward(hidden);
      expect_rows(output, expected.output);
      expect_same_bits(rank.layer->expert_load(), expected.load);
      expect_same_bits(rank.layer->local_expert_load(), expected.load);
      expect_same_bits(rank.forward(hidden), output);
      // Another dtype on either side.
      expect_rows(convert(rank.forward(convert(hidden, DType::kF32), DType::kF32), DType::kBF16),
                  expected.output);
    }
  }
}

TEST_F(CudaLayer, StagesHaveTimes) {
  RankLayer rank({.name = "standard"}, {}, Place{Device::cuda(0)}, nullptr);
  const Tensor hidden = rank.place.take(random_tensor({64, kHidden}, DType::kBF16, 1));
  const Tensor output = Tensor::empty(hidden.shape(), DType::kBF16, hidden.device());
  Profile profile;
  CallContext context = rank.context();
  rank.layer->forward(hidden, output, context);
  context.profile = &profile;
  rank.layer->forward(hidden, output, context);
  std::vector<std::string> names;
  for (const Profile::Stage& stage : profile.stages()) {
    names.push_back(stage.name);
    EXPECT_GT(stage.total.count(), 0) << stage.name;
    EXPECT_LT(stage.total, std::chrono::milliseconds(50)) << stage.name;
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"router", "shared", "prepare", "experts", "finalize"}));
}

// Records a call, then replays it on other hidden states: the bits of calls that are not recorded.
void expect_replays(RankLayer& rank, int64_t num_tokens, uint32_t seed, Group* group = nullptr) {
  const auto hidden = [&](uint32_t call) {
    return random_tensor({num_tokens, kHidden}, DType::kBF16, seed + call);
  };
  std::vector<Tensor> expected;
  for (const uint32_t call : {0u, 1u, 2u, 3u}) {
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
  for (const uint32_t call : {1u, 2u, 2u, 3u}) {
    const Tensor next = hidden(call);
    copy(next, in, rank.place.stream);
    graph.launch();
    const Tensor actual = rank.place.bring(out);
    rank.layer->check();
    expect_same_bits(actual, expected[call]);
  }
  expect_same_bits(rank.layer->expert_load(), load);
}

TEST_F(CudaLayer, OneRankIsCapturedByGraphs) {
  const Kind kinds[] = {
      {.name = "standard"},
      {.name = "batched", .format = ActivationFormat::kBatched},
      {.name = "micro-batches", .microbatches = 2},
  };
  for (const Kind& kind : kinds) {
    for (const int64_t num_tokens : {1, 8, 20}) {
      SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(num_tokens) + " tokens");
      RankLayer rank(kind, {}, Place{Device::cuda(0)}, nullptr);
      expect_replays(rank, num_tokens, 31);
    }
  }
}

TEST_F(CudaLayer, OutOfMemorySaysHowMuch) {
  expect_mentions(
      message_of([] { Tensor::empty({int64_t{1} << 46}, DType::kU8, Device::cuda(0)); }),
      {"out of memory", "70368744177664", "cuda:0", "free"});
}

class CudaLayerRanks : public GpuRanksTest {
 protected:
  // More ranks share a GPU than may replay graphs there: their layers say so, and that is all.
  bool is_too_crowded_for_graphs(const Kind& kind) const {
    if (comm::can_replay_on_one_gpu(GetParam().num_ranks / GetParam().num_gpus,
                                    cuda::hardware_queues())
            .ok) {
      return false;
    }
    run([&](Group& group) {
      RankLayer layer(kind,
                      ParallelConfig::make(1, 0, group.size(), group.rank(), true, kind.backend),
                      Place(group.device()), &group);
      EXPECT_FALSE(layer.layer->can_be_captured().ok);
      expect_mentions(layer.layer->can_be_captured().reason, {"8 ranks share a GPU", "at most 5"});
      group.barrier("end");
    });
    return true;
  }
};

// All in one group: one of NCCL takes half a second to come together.
TEST_P(CudaLayerRanks, EveryBackendGivesTheRowsOfOneCpu) {
  const int num_ranks = GetParam().num_ranks;
  // Ranks of a TP group bring the same tokens; 13 are two pieces of a batched call.
  const auto hidden_of = [&](int dp_rank) {
    return random_tensor({(dp_rank * 7 + 13) % 17, kHidden}, DType::kBF16,
                         static_cast<uint32_t>(50 + dp_rank));
  };
  std::vector<Expected> expected;  // by rank of DP
  for (int dp_rank = 0; dp_rank < num_ranks; ++dp_rank) {
    expected.push_back(on_one_cpu(hidden_of(dp_rank)));
  }
  run([&](Group& group) {
    for (const Kind& kind : kOverRanks) {
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

// Parts are of columns, and sums of a column do not mind the others.
TEST_P(CudaLayerRanks, ResultsInPartsHaveTheBitsOfWholeOnes) {
  run([&](Group& group) {
    const auto parallel = ParallelConfig::make(1, 0, group.size(), group.rank(), true,
                                               All2AllBackend::kHighThroughput);
    const Tensor hidden = random_tensor({group.rank() == 1 ? 0 : 200 + group.rank(), kHidden},
                                        DType::kBF16, static_cast<uint32_t>(70 + group.rank()));
    Tensor whole;
    for (const int parts : {1, 2, 64}) {  // 64: as many as have 128 columns
      RankLayer layer(
          {.name = "", .backend = All2AllBackend::kHighThroughput, .combine_parts = parts},
          parallel, Place(group.device()), &group);
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

// Of a part it ends when it has come, not when the last one has.
TEST_P(CudaLayerRanks, FlightsOfPartsFollowEachOther) {
  const Kind kind{.name = "parts", .backend = All2AllBackend::kHighThroughput, .combine_parts = 2};
  run([&](Group& group) {
    RankLayer layer(kind,
                    ParallelConfig::make(1, 0, group.size(), group.rank(), true, kind.backend),
                    Place(group.device()), &group);
    const Tensor hidden = random_tensor({130, kHidden}, DType::kBF16, 9);
    layer.forward(hidden);
    const Tensor in = layer.place.take(hidden);
    const Tensor out = Tensor::empty(in.shape(), DType::kBF16, in.device());
    Profile profile(Profile::Keep::kIntervals);
    CallContext context = layer.context();
    context.profile = &profile;
    layer.layer->forward(in, out, context);
    layer.place.stream.synchronize();
    std::vector<Profile::Interval> flights;
    for (const Profile::Interval& interval : profile.intervals()) {
      if (interval.track == Profile::Track::kInFlight && interval.name == "combine") {
        flights.push_back(interval);
      }
    }
    ASSERT_EQ(flights.size(), 2u);
    EXPECT_LE(flights[0].end, flights[1].begin);
    group.barrier("end");
  });
}

TEST_P(CudaLayerRanks, IntervalsOfMicrobatchesLieWithinTheCall) {
  using Track = Profile::Track;
  const Kind kind{
      .name = "high throughput", .backend = All2AllBackend::kHighThroughput, .microbatches = 2};
  run([&](Group& group) {
    RankLayer layer(kind,
                    ParallelConfig::make(1, 0, group.size(), group.rank(), true, kind.backend),
                    Place(group.device()), &group);
    const Tensor hidden = random_tensor({13, kHidden}, DType::kBF16, 9);
    const Tensor expected = layer.forward(hidden);
    layer.forward(hidden);
    const Tensor in = layer.place.take(hidden);
    const Tensor out = Tensor::empty(in.shape(), DType::kBF16, in.device());
    Profile profile(Profile::Keep::kIntervals);
    CallContext context = layer.context();
    context.profile = &profile;
    layer.place.stream.synchronize();
    group.barrier("profiled call");
    const auto begin = Profile::Clock::now();
    layer.layer->forward(in, out, context);
    layer.place.stream.synchronize();
    const auto end = Profile::Clock::now();
    expect_same_bits(layer.place.bring(out), expected);
    std::map<Track, int> tracks;
    std::map<std::string, int> flights;
    // Places of a GPU's events on the host's clock are as exact as that of the one they follow.
    constexpr std::chrono::milliseconds kExact{1};
    for (const Profile::Interval& interval : profile.intervals()) {
      ++tracks[interval.track];
      flights[interval.name] += interval.track == Track::kInFlight;
      EXPECT_LE(interval.begin, interval.end) << interval.name;
      EXPECT_GE(interval.begin, begin - kExact) << interval.name;
      EXPECT_LE(interval.end, end + kExact) << interval.name;
    }
    for (const Track track : {Track::kHost, Track::kCompute, Track::kTransfers, Track::kShared}) {
      EXPECT_GT(tracks[track], 0) << static_cast<int>(track);
    }
    EXPECT_EQ(flights["dispatch"], 2);
    EXPECT_EQ(flights["combine"], 2);
    group.barrier("end");
  });
}

TEST_P(CudaLayerRanks, LowLatencyIsCapturedByGraphs) {
  if (is_too_crowded_for_graphs({.name = "low latency", .backend = All2AllBackend::kLowLatency})) {
    return;
  }
  run([&](Group& group) {
    const auto parallel =
        ParallelConfig::make(1, 0, group.size(), group.rank(), true, All2AllBackend::kLowLatency);
    for (const int microbatches : {1, 2}) {
      const Kind kind{.name = "low latency",
                      .backend = All2AllBackend::kLowLatency,
                      .microbatches = microbatches};
      for (const int64_t num_tokens : {3, 13}) {
        RankLayer layer(kind, parallel, Place(group.device()), &group);
        expect_replays(layer, num_tokens, static_cast<uint32_t>(100 * group.rank()), &group);
        group.barrier("end");
      }
    }
  });
}

constexpr Kind kCounted{.name = "counted", .backend = All2AllBackend::kHighThroughput};

ParallelConfig high_throughput_of(const Group& group) {
  return ParallelConfig::make(1, 0, group.size(), group.rank(), true, kCounted.backend);
}

// A capacity for all tokens.
constexpr Kind kUncounted{
    .name = "uncounted", .backend = All2AllBackend::kHighThroughput, .capacity = 0};

TEST_P(CudaLayerRanks, HighThroughputIsCapturedByGraphs) {
  if (is_too_crowded_for_graphs(kUncounted)) {
    return;
  }
  run([&](Group& group) {
    const auto parallel = high_throughput_of(group);
    const Place place(group.device());
    RankLayer counted(kCounted, parallel, place, &group);
    Kind kinds[] = {kUncounted, kUncounted, kUncounted};
    kinds[1].microbatches = 2;
    kinds[2].combine_parts = 2;
    for (const Kind& kind : kinds) {
      for (const int64_t fewest : {0, 3, 13}) {  // ranks have as many, or one more
        SCOPED_TRACE(std::to_string(kind.microbatches) + " micro-batches, " +
                     std::to_string(kind.combine_parts) + " parts, " + std::to_string(fewest));
        const int64_t num_tokens = fewest + group.rank() % 2;
        const auto seed = static_cast<uint32_t>(100 * group.rank());
        RankLayer layer(kind, parallel, place, &group);
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

TEST_P(CudaLayerRanks, GraphsOfHighThroughputOutliveLargerCalls) {
  if (is_too_crowded_for_graphs(kUncounted)) {
    return;
  }
  run([&](Group& group) {
    RankLayer layer(kUncounted, high_throughput_of(group), Place(group.device()), &group);
    struct Call {
      WorkspacePool workspaces;
      Tensor in, out, expected;
      std::unique_ptr<Graph> graph;
    };
    std::map<int64_t, Call> calls;
    for (const int64_t num_tokens : {2, 9, 300}) {
      Call& call = calls[num_tokens];
      const auto seed = static_cast<uint32_t>(num_tokens + group.rank());
      call.in = layer.place.take(random_tensor({num_tokens, kHidden}, DType::kBF16, seed));
      call.out = Tensor::empty(call.in.shape(), DType::kBF16, call.in.device());
      const auto forward = [&] {
        layer.layer->forward(call.in, call.out, {layer.place.stream, &call.workspaces, 0, nullptr});
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

// Rows that each rank gets where every rank brings `hidden_of(rank)`.
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

// The CommError of a call that has more rows than room, on a rank: it has both numbers.
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
  const auto hidden_of = [](int rank, uint32_t call) {
    return random_tensor({kTokens, kHidden}, DType::kBF16, 50 * call + static_cast<uint32_t>(rank));
  };
  const auto most_rows = [&](uint32_t call) {
    const auto rows = rows_by_rank(num_ranks, [&](int rank) { return hidden_of(rank, call); });
    return *std::max_element(rows.begin(), rows.end());
  };
  // One call that fits, with no row to spare, and one that does not.
  uint32_t least = 0;
  uint32_t most = 0;
  for (uint32_t call = 1; call < 20; ++call) {
    least = most_rows(call) < most_rows(least) ? call : least;
    most = most_rows(call) > most_rows(most) ? call : most;
  }
  const auto rows = rows_by_rank(num_ranks, [&](int rank) { return hidden_of(rank, most); });
  ASSERT_TRUE(num_ranks == 1 || most_rows(least) < most_rows(most));
  run([&](Group& group) {
    const int rank = group.rank();
    const Tensor fits = hidden_of(rank, least);
    const Tensor overflows = hidden_of(rank, most);
    Kind kind = kCounted;
    RankLayer counted(kind, high_throughput_of(group), Place(group.device()), &group);
    kind.capacity = num_ranks == 1 ? kTokens - 1 : most_rows(least);
    const auto expect_error = [&](const std::function<void()>& call) {
      expect_overflow(call, rows, *kind.capacity);
    };
    {
      RankLayer layer(kind, high_throughput_of(group), Place(group.device()), &group);
      expect_error([&] { layer.forward(overflows); });
      expect_error([&] { layer.forward(overflows); });  // the layer is of no more use
      group.barrier("all have seen it");
    }
    if (num_ranks == 1) {  // every token is a row
      return;
    }
    RankLayer layer(kind, high_throughput_of(group), Place(group.device()), &group);
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

TEST_P(CudaLayerRanks, WhatWaitsForHostsSaysThatItCannotBeCaptured) {
  run([&](Group& group) {
    for (const auto& [backend, word] :
         {std::pair(All2AllBackend::kHighThroughput, "number of rows, unless the layer has a"),
          std::pair(All2AllBackend::kAllGatherReduceScatter, "streams of several ranks")}) {
      RankLayer layer({.name = "", .backend = backend},
                      ParallelConfig::make(1, 0, group.size(), group.rank(), true, backend),
                      Place(group.device()), &group);
      EXPECT_FALSE(layer.layer->can_be_captured().ok);
      expect_mentions(layer.layer->can_be_captured().reason, {word});
      group.barrier("end");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, CudaLayerRanks, ::testing::ValuesIn(gpu_ranks()), gpu_ranks_name);

}  // namespace
}  // namespace moebius::testing
