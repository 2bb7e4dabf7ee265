// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// MoeLayer over ranks: sequence parallelism, options, and going on without a rank.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>

#include "problems/gemm_tolerance.h"
#include "tests/by_name.h"
#include "tests/layer/backends.h"
#include "tests/layer/fakes.h"
#include "tests/layer/small_layer.h"
#include "tests/layer/spread.h"

namespace moebius::testing {
namespace {

constexpr int kRanks = 4;
constexpr std::array<int64_t, kRanks> kTokens = {5, 0, 8, 3};

// The tokens of ranks [begin, end).  Every rank draws the same numbers.
Tensor tokens_of(int begin, int end) {
  const auto first = [](int rank) {
    return std::accumulate(kTokens.begin(), kTokens.begin() + rank, int64_t{0});
  };
  return random_tensor({first(kRanks), SmallLayer::kHidden}, DType::kF32, 20)
      .slice(first(begin), first(end))
      .clone();
}

class SequenceParallel : public ::testing::TestWithParam<Spread> {};

// The outputs of tp 2 x dp 2 ranks.  With sequence parallelism every rank has tokens of its own.
// Otherwise both ranks of a TP group have the tokens of both.
std::vector<Tensor> run_tp2_dp2(const Spread& spread,
                                bool sequence_parallel,
                                int microbatches = 1) {
  MoeLayerOptions options = spread.options(SmallLayer::options());
  options.sequence_parallel = sequence_parallel;
  options.kernel.microbatches = microbatches;
  options.kernel.min_microbatch_tokens = 0;
  return run_spread(spread, options, SmallLayer::shard, [&](int rank) {
    const int first = sequence_parallel ? rank : rank / 2 * 2;
    return RankTokens{tokens_of(first, sequence_parallel ? rank + 1 : first + 2), {}};
  });
}

TEST_P(SequenceParallel, RowsAreThoseOfSharedTokens) {
  const std::vector<Tensor> shared = run_tp2_dp2(GetParam(), false);
  const std::vector<Tensor> own = run_tp2_dp2(GetParam(), true);
  for (size_t rank = 0; rank < kRanks; rank += 2) {
    SCOPED_TRACE("ranks " + std::to_string(rank) + " and the next");
    expect_same_bits(shared[rank], shared[rank + 1]);
    expect_same_bits(own[rank], shared[rank].slice(0, kTokens[rank]));
    expect_same_bits(own[rank + 1],
                     shared[rank].slice(kTokens[rank], kTokens[rank] + kTokens[rank + 1]));
  }
}

TEST(SequenceParallel, IsRefusedWhereOutputsOfAllRanksAreSummed) {
  const auto make = [](int num_ranks) {
    run_thread_ranks({.num_ranks = num_ranks}, [&](Group& group) {
      MoeLayerOptions chosen = SmallLayer::options();
      chosen.sequence_parallel = true;
      const auto parallel = ParallelConfig::make(num_ranks, group.rank(), 1, 0, true);
      MoeLayer(SmallLayer::shard(parallel), chosen, Stream::cpu(1), &group);
    });
  };
  expect_error({"sequence_parallel", "all2all none", "2 ranks"}, [&] { make(2); });
  EXPECT_EQ(message_of<Error>([&] { make(1); }), "no error");
}

// A rank cannot have another number of experts than its share.
TEST(LocalExperts, AreThoseOfTheRank) {
  run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
    const auto parallel =
        ParallelConfig::make(1, 0, 2, group.rank(), true, All2AllBackend::kAllGatherReduceScatter);
    MoeLayerWeights weights = SmallLayer::whole();  // it has 6 experts
    weights.config.parallel = parallel;
    weights.config.num_local_experts = 2;
    weights.experts.w1 = weights.experts.w1.slice(0, 2);
    weights.experts.w2 = weights.experts.w2.slice(0, 2);
    expect_error({"num_local_experts", "is 2", "expected 3"}, [&] {
      MoeLayer(std::move(weights), SmallLayer::options(), Stream::cpu(1), &group);
    });
  });
}

// A backend of two ranks, each with two of four experts and up to three tokens.
std::unique_ptr<PrepareFinalize> make_of_two(All2AllBackend backend, Group& group) {
  return make_backend(backend, group, /*num_experts=*/4, /*max_tokens=*/3, /*hidden=*/8);
}

ExpertsDesc half_of_four(All2AllBackend backend) {
  ExpertsDesc desc = fake_desc(4, 1, 8, format_of(backend));
  desc.num_local_experts = 2;
  return desc;
}

// The error of a call over such ranks, where owners[e] is the rank of expert e in the expert map.
std::string error_with_map(All2AllBackend backend, const std::vector<int>& owners) {
  return message_of<Error>([&] {
    run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
      ModularKernel kernel(make_of_two(backend, group),
                           std::make_unique<FakeExperts>(half_of_four(backend)));
      WorkspacePool pool;
      KernelInput input = random_input(half_of_four(backend), 3);
      if (!owners.empty()) {
        input.expert_map = ExpertPlacement::from_ranks(owners, 2).expert_map(group.rank());
      }
      kernel.forward(input, Tensor::empty({3, 8}, DType::kF32), {}, {Stream::cpu(1), &pool});
    });
  });
}

TEST(LocalExperts, AMapSaysWhichTheyAre) {
  constexpr auto kGather = All2AllBackend::kAllGatherReduceScatter;
  constexpr auto kSend = All2AllBackend::kHighThroughput;
  EXPECT_EQ(error_with_map(kGather, {0, 0, 1, 1}), "no error");
  EXPECT_EQ(error_with_map(kGather, {0, 1, 0, 1}), "no error");
  expect_mentions(error_with_map(kGather, {}), {"local experts without an expert_map", "2", "4"});
  EXPECT_EQ(error_with_map(kSend, {}), "no error");
  EXPECT_EQ(error_with_map(kSend, {0, 0, 1, 1}), "no error");
  expect_mentions(error_with_map(kSend, {0, 1, 0, 1}), {"expert_map[1] is", "high_throughput"});
}

class FailedCall : public ::testing::TestWithParam<All2AllBackend> {};

// Both ranks fail in the same call, and both go on.
TEST_P(FailedCall, LeavesNothing) {
  const All2AllBackend backend = GetParam();
  run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
    std::unique_ptr<PrepareFinalize> made = make_of_two(backend, group);
    PrepareFinalize& pf = *made;
    ModularKernel kernel(std::move(made),
                         std::make_unique<FailingExperts>(half_of_four(backend), 0));
    WorkspacePool pool;
    const CallContext context{Stream::cpu(1), &pool};
    const KernelInput input{.hidden = filled({3, 8}, DType::kF32, {1}),
                            .topk_ids = ids_of({3, 1}, {0, 1, 3}),
                            .topk_weights = filled({3, 1}, DType::kF32, {1}),
                            .num_experts = 4,
                            .expert_map = ExpertPlacement::linear(4, 2).expert_map(group.rank())};
    const Tensor output = Tensor::empty({3, 8}, DType::kF32);
    const auto forward = [&] { kernel.forward(input, output, {}, context); };
    EXPECT_EQ(message_of<Error>(forward), "expert 7 is on fire");

    const auto delegate = make_weight_and_reduce(WeightAndReduceKind::kDelegate);
    FinalizeInput done;
    done.output = output;
    done.weight_and_reduce = delegate.get();
    expect_error({"before its prepare"}, [&] { pf.finalize(done, context); });
    forward();
    expect_same_bits(output[0], filled({8}, DType::kF32, {1}));
    expect_same_bits(output[1], filled({8}, DType::kF32, {2}));
    expect_same_bits(output[2], filled({8}, DType::kF32, {2}));
  });
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         FailedCall,
                         ::testing::ValuesIn(kBackends),
                         [](const auto& test) { return std::string(name(test.param)); });

// Some micro-batches take several calls of a batched backend, and some have no token.
TEST_P(SequenceParallel, MicrobatchesChangeNoBit) {
  const std::vector<Tensor> whole = run_tp2_dp2(GetParam(), false);
  for (const int microbatches : {2, 3, 4}) {
    SCOPED_TRACE(microbatches);
    const std::vector<Tensor> cut = run_tp2_dp2(GetParam(), false, microbatches);
    for (size_t rank = 0; rank < kRanks; ++rank) {
      expect_same_bits(cut[rank], whole[rank]);
    }
  }
}

std::vector<Spread> tp2_dp2_spreads() {
  std::vector<Spread> all;
  for (const auto backend : kBackends) {
    const std::string n(name(backend));
    all.push_back({.name = n, .tp = 2, .dp = 2, .backend = backend});
    if (backend == All2AllBackend::kAllGatherReduceScatter) {
      all.push_back(
          {.name = n + "_monolithic", .tp = 2, .dp = 2, .backend = backend, .monolithic = true});
    } else {
      all.push_back(
          {.name = n + "_two_nodes", .tp = 2, .dp = 2, .backend = backend, .ranks_per_node = 2});
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Backends,
                         SequenceParallel,
                         ::testing::ValuesIn(tp2_dp2_spreads()),
                         by_name);

MoeLayerWeights shard_of(const Group& group, All2AllBackend backend) {
  return SmallLayer::shard(ParallelConfig::make(1, 0, group.size(), group.rank(), true, backend));
}

// The output on one rank if the experts of rank `dead` give zeros.
Tensor run_alone_without(int dead, const Tensor& hidden) {
  MoeLayerWeights weights = SmallLayer::whole();
  const ExpertRange gone = expert_range(SmallLayer::kExperts, kRanks, dead);
  const Tensor w2 = weights.experts.w2.slice(gone.begin, gone.end);
  std::memset(w2.raw(), 0, static_cast<size_t>(w2.nbytes()));
  return run_alone(std::move(weights), SmallLayer::options(), hidden);
}

// The error of making a layer over two ranks.  choose(options, parallel) changes its options.
template <typename Choose>
std::string layer_refusal(All2AllBackend backend, int ranks_per_node, const Choose& choose) {
  std::string text;
  run_thread_ranks({.num_ranks = 2, .ranks_per_node = ranks_per_node}, [&](Group& group) {
    MoeLayerOptions chosen = SmallLayer::options();
    auto parallel = ParallelConfig::make(1, 0, 2, group.rank(), true, backend);
    choose(chosen, parallel);
    const std::string refusal = message_of<Error>(
        [&] { MoeLayer(SmallLayer::shard(parallel), chosen, Stream::cpu(1), &group); });
    if (group.rank() == 0) {
      text = refusal;
    }
    group.barrier("both have tried");
  });
  return text;
}

TEST(OptionsOfALayer, CommSmsArePairsForKernelsOfOurOwn) {
  const auto refusal_of = [](All2AllBackend backend, int comm_sms) {
    return layer_refusal(backend, 0, [&](MoeLayerOptions& options, ParallelConfig&) {
      options.comm_sms = comm_sms;
    });
  };
  for (const auto backend : {All2AllBackend::kHighThroughput, All2AllBackend::kLowLatency}) {
    expect_mentions(refusal_of(backend, 3), {"comm_sms", "is 3", "multiple of 2"});
    EXPECT_EQ(refusal_of(backend, 4), "no error");
  }
  expect_mentions(refusal_of(All2AllBackend::kAllGatherReduceScatter, 4),
                  {"comm_sms 4", "allgather_reducescatter"});
}

TEST(OptionsOfALayer, RanksMustFitTheBackend) {
  expect_mentions(layer_refusal(All2AllBackend::kNone, 0, [](auto&, ParallelConfig&) {}),
                  {"all2all none", "dp_size is 2"});
  for (const auto backend : {All2AllBackend::kHighThroughput, All2AllBackend::kLowLatency}) {
    expect_mentions(layer_refusal(backend, 0,
                                  [](auto&, ParallelConfig& parallel) {
                                    parallel = ParallelConfig::make(1, 0, 2, parallel.dp_rank,
                                                                    false, parallel.backend);
                                  }),
                    {name(backend).data(), "without expert parallelism", "2 ranks"});
  }
  expect_mentions(layer_refusal(All2AllBackend::kHighThroughput, 0,
                                [](MoeLayerOptions& options, ParallelConfig&) {
                                  options.precision = Precision::kF64;
                                }),
                  {"float64 oracle", "2"});
}

TEST(OptionsOfALayer, SomeAreForOneBackendAlone) {
  const auto refusal_of = [](All2AllBackend backend, int ranks_per_node, const auto& choose) {
    return layer_refusal(backend, ranks_per_node,
                         [&](MoeLayerOptions& options, ParallelConfig&) { choose(options); });
  };
  const auto capacity = [](MoeLayerOptions& options) { options.capacity = 7; };
  expect_mentions(refusal_of(All2AllBackend::kHighThroughput, 0, capacity), {"capacity", "CPUs"});
  expect_mentions(refusal_of(All2AllBackend::kHighThroughput, 1, capacity),
                  {"capacity", "2 nodes"});
  expect_mentions(refusal_of(All2AllBackend::kLowLatency, 0, capacity),
                  {"capacity 7", "low_latency"});
  const auto parts = [](MoeLayerOptions& options) { options.kernel.combine_parts = 3; };
  expect_mentions(refusal_of(All2AllBackend::kLowLatency, 0, parts),
                  {"combine_parts 3", "low_latency"});
  EXPECT_EQ(refusal_of(All2AllBackend::kHighThroughput, 0, parts),
            "no error");  // CPUs return results whole
  const auto early = [](MoeLayerOptions& options) { options.kernel.early_rows = 4096; };
  expect_mentions(refusal_of(All2AllBackend::kLowLatency, 0, early),
                  {"early_rows 4096", "low_latency"});
  EXPECT_EQ(refusal_of(All2AllBackend::kHighThroughput, 0, early),
            "no error");  // on CPUs all rows come at once
  const auto by_ranks = [](MoeLayerOptions& options) {
    options.low_latency_sum = LowLatencySum::kRanks;
  };
  expect_mentions(refusal_of(All2AllBackend::kHighThroughput, 0, by_ranks),
                  {"low_latency_sum", "high_throughput"});
  expect_mentions(refusal_of(All2AllBackend::kLowLatency, 1, by_ranks), {"ranks", "2 nodes"});
  EXPECT_EQ(refusal_of(All2AllBackend::kLowLatency, 0, by_ranks), "no error");
}

// One rank stops after its first call.  The others learn which it is, exclude it and go on.
TEST(DeadRank, LowLatencyGoesOnWithoutIt) {
  constexpr int kDead = 1;
  std::array<int, kRanks> num_right{};
  run_thread_ranks({.num_ranks = kRanks}, [&](Group& group) {
    const int rank = group.rank();
    const Stream stream = Stream::cpu(1);
    MoeLayer layer(shard_of(group, All2AllBackend::kLowLatency), SmallLayer::options(), stream,
                   &group);
    WorkspacePool pool;
    const Tensor hidden = tokens_of(rank, rank + 1);
    const Tensor output = Tensor::empty(hidden.shape(), DType::kF32);
    const auto forward = [&] { layer.forward(hidden, output, {stream, &pool}); };
    forward();
    if (rank == kDead) {
      return;
    }
    try {
      forward();
      ADD_FAILURE() << "rank " << rank << " did not miss rank " << kDead;
    } catch (const CommError& error) {
      EXPECT_EQ(error.peer(), kDead) << error.what();
    }
    layer.set_dead(kDead, true);
    const Tensor expected = run_alone_without(kDead, hidden);
    for (int call = 0; call < 5; ++call) {
      poison(output);
      forward();
      bool is_right = true;
      for (int64_t t = 0; t < hidden.dim(0); ++t) {
        is_right = is_right && relative_error(output[t], expected[t]) <=
                                   4 * tolerance(DType::kF32, std::nullopt, SmallLayer::kHidden);
      }
      num_right[static_cast<size_t>(rank)] += is_right ? 1 : 0;
    }
    const Tensor many =
        random_tensor({SmallLayer::kMaxTokens + 1, SmallLayer::kHidden}, DType::kF32, 21);
    expect_error({"given ranks up", "9", "8"}, [&] {
      layer.forward(many, many.clone(), {stream, &pool});
    });
  });
  EXPECT_EQ(num_right, (std::array{5, 0, 5, 5}));
}

TEST(DeadRank, OtherBackendsNeedEveryRank) {
  const auto refusal = [](All2AllBackend backend, int ranks_per_node) {
    std::string message;
    run_thread_ranks({.num_ranks = 2, .ranks_per_node = ranks_per_node}, [&](Group& group) {
      MoeLayer layer(shard_of(group, backend), SmallLayer::options(), Stream::cpu(1), &group);
      if (group.rank() == 0) {
        message = message_of<Error>([&] { layer.set_dead(1, true); });
      }
    });
    return message;
  };
  for (const auto backend :
       {All2AllBackend::kAllGatherReduceScatter, All2AllBackend::kHighThroughput}) {
    expect_mentions(refusal(backend, 0), {name(backend).data(), "needs every rank", "rank 1"});
  }
  expect_mentions(refusal(All2AllBackend::kLowLatency, 1), {"low_latency", "2 nodes", "rank 1"});
  EXPECT_EQ(refusal(All2AllBackend::kLowLatency, 0), "no error");
}

}  // namespace
}  // namespace moebius::testing
