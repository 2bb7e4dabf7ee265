// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Layers that get ids and weights with the hidden states: over every backend and number of ranks
// they give the bits of layers that choose the same experts themselves.
#include <gtest/gtest.h>

#include <string>

#include "tests/by_name.h"
#include "tests/layer/backends.h"
#include "tests/layer/small_layer.h"
#include "tests/layer/spread.h"

namespace moebius::testing {
namespace {

constexpr int64_t kTokens = 21;

std::vector<Spread> spreads() {
  std::vector<Spread> all;
  for (const int ranks : {1, 2, 4}) {
    const std::string n = std::to_string(ranks);
    for (const auto backend : kBackends) {
      all.push_back(
          {.name = std::string(name(backend)) + "_dp" + n, .dp = ranks, .backend = backend});
    }
    all.push_back({.name = "none_tp" + n, .tp = ranks});
  }
  all.push_back({.name = "none_batched", .format = ActivationFormat::kBatched});
  for (const auto backend : kBackends) {
    all.push_back(
        {.name = std::string(name(backend)) + "_tp2_dp2", .tp = 2, .dp = 2, .backend = backend});
  }
  return all;
}

Tensor all_hidden() {
  return random_tensor({kTokens, SmallLayer::kHidden}, DType::kF32, 31);
}

// What the layer's own router chooses for these hidden states.
RankTokens routed(const Tensor& hidden) {
  const MoeLayerWeights weights = SmallLayer::whole();
  const Router router(weights.router_config, weights.router);
  const Shape selections{hidden.dim(0), SmallLayer::kTopk};
  RankTokens tokens{.hidden = hidden,
                    .topk_ids = Tensor::empty(selections, DType::kI32),
                    .topk_weights = Tensor::empty(selections, DType::kF32)};
  const Tensor logits = Tensor::empty({hidden.dim(0), SmallLayer::kExperts}, DType::kF32);
  router.logits(hidden, logits, {});
  router.select(logits, tokens.topk_ids, tokens.topk_weights, {});
  return tokens;
}

Tensor wide(const Tensor& ids) {
  const Tensor out = Tensor::empty(ids.shape(), DType::kI64);
  std::copy_n(ids.data<int32_t>(), ids.numel(), out.data<int64_t>());
  return out;
}

MoeLayerWeights without_router(const ParallelConfig& parallel) {
  MoeLayerWeights weights = SmallLayer::shard(parallel);
  weights.router_config = {};
  weights.router = {};
  return weights;
}

class GivenIds : public ::testing::TestWithParam<Spread> {};
class GivenIdsOfSomeRanks : public GivenIds {};

TEST_P(GivenIds, GiveTheBitsOfARouter) {
  const Spread& spread = GetParam();
  const auto own_hidden = [&](int rank) {
    const ExpertRange own = expert_range(kTokens, spread.dp, rank / spread.tp);
    return all_hidden().slice(own.begin, own.end);
  };
  const MoeLayerOptions options = spread.options(SmallLayer::options());
  const auto expected = run_spread(spread, options, SmallLayer::shard,
                                   [&](int rank) { return RankTokens{own_hidden(rank)}; });
  for (const DType dtype : {DType::kI32, DType::kI64}) {
    const auto actual = run_spread(spread, options, without_router, [&](int rank) {
      RankTokens tokens = routed(own_hidden(rank));
      tokens.topk_ids = dtype == DType::kI64 ? wide(tokens.topk_ids) : tokens.topk_ids;
      return tokens;
    });
    for (size_t rank = 0; rank < actual.size(); ++rank) {
      SCOPED_TRACE(std::string(name(dtype)) + " rank " + std::to_string(rank));
      expect_same_bits(actual[rank], expected[rank]);
    }
  }
}

// The last rank routes, and the others bring ids.
TEST_P(GivenIdsOfSomeRanks, GiveTheBitsOfARouter) {
  const Spread& spread = GetParam();
  const auto run = [&](bool some_bring_ids) {
    return run_spread(
        spread, spread.options(SmallLayer::options()), SmallLayer::shard, [&](int rank) {
          const ExpertRange own = expert_range(kTokens, spread.dp, rank / spread.tp);
          const Tensor hidden = all_hidden().slice(own.begin, own.end);
          return some_bring_ids && rank / spread.tp + 1 < spread.dp ? routed(hidden)
                                                                    : RankTokens{hidden};
        });
  };
  const auto expected = run(false);
  const auto actual = run(true);
  for (size_t rank = 0; rank < actual.size(); ++rank) {
    expect_same_bits(actual[rank], expected[rank]);
  }
}

INSTANTIATE_TEST_SUITE_P(Spreads, GivenIds, ::testing::ValuesIn(spreads()), by_name);

// Ranks that hold the same tokens give the same ids, so there are others.
INSTANTIATE_TEST_SUITE_P(Spreads,
                         GivenIdsOfSomeRanks,
                         ::testing::ValuesIn([] {
                           std::vector<Spread> some;
                           for (const Spread& spread : spreads()) {
                             if (spread.dp > 1) {
                               some.push_back(spread);
                             }
                           }
                           return some;
                         }()),
                         by_name);

TEST(GivenIdsOfOneRank, MaskedSelectionsAddNothingAndLoadsCountTheRest) {
  MoeLayer layer(without_router({}), SmallLayer::options(), {});
  RankTokens tokens = routed(all_hidden());
  for (int64_t t = 0; t < kTokens; ++t) {
    tokens.topk_ids.data<int32_t>()[2 * t] = 1;
    tokens.topk_ids.data<int32_t>()[2 * t + 1] = -1;
  }
  WorkspacePool pool;
  const auto run = [&] {
    const Tensor output = Tensor::empty(tokens.hidden.shape(), DType::kF32);
    layer.forward(tokens.input(), output, {.workspaces = &pool});
    return output;
  };
  const Tensor output = run();
  for (const Tensor& load : {layer.expert_load(), layer.local_expert_load()}) {
    EXPECT_EQ(load.data<int64_t>()[1], kTokens);
    EXPECT_EQ(load.data<int64_t>()[0], 0);
  }
  for (int64_t t = 0; t < kTokens; ++t) {
    tokens.topk_weights.data<float>()[2 * t + 1] = 7.0f;  // of a masked selection
  }
  expect_same_bits(run(), output);
  EXPECT_EQ(layer.router(), nullptr);
}

TEST(GivenIdsOfOneRank, WhatDoesNotFitIsRefusedBeforeTheCall) {
  MoeLayer layer(without_router({}), SmallLayer::options(), {});
  const RankTokens good = routed(all_hidden());
  const Tensor output = Tensor::empty(good.hidden.shape(), DType::kF32);
  poison(output);
  const Tensor before = output.clone();
  WorkspacePool pool;
  const auto expect_refused = [&](Parts parts, auto change) {
    MoeLayerInput input = good.input();
    change(input);
    expect_error(parts, [&] { layer.forward(input, output, {.workspaces = &pool}); });
    expect_same_bits(output, before);
  };
  expect_refused({"topk_weights"}, [](MoeLayerInput& input) { input.topk_weights = {}; });
  expect_refused({"topk_weights are given without topk_ids"},
                 [](MoeLayerInput& input) { input.topk_ids = {}; });
  expect_refused({"topk_ids are missing", "router"},
                 [](MoeLayerInput& input) { input.topk_ids = input.topk_weights = {}; });
  expect_refused({"topk_ids dtype is f32", "i32 or i64"},
                 [](MoeLayerInput& input) { input.topk_ids = input.topk_weights; });
  expect_refused({"topk_ids", "[21, 1]", "[21, 2]"}, [](MoeLayerInput& input) {
    input.topk_ids = Tensor::zeros({kTokens, 1}, DType::kI64);
  });
  expect_refused({"topk_weights", "[20, 2]", "[21, 2]"}, [](MoeLayerInput& input) {
    input.topk_weights = input.topk_weights.slice(0, 20);
  });
  expect_refused({"token 3, slot 1 is 6, expected -1 to 5"}, [](MoeLayerInput& input) {
    input.topk_ids = input.topk_ids.clone();
    input.topk_ids.data<int32_t>()[7] = 6;
  });
  expect_refused({"token 3, slot 1 is 4294967296, expected -1 to 5"}, [](MoeLayerInput& input) {
    input.topk_ids = wide(input.topk_ids);
    input.topk_ids.data<int64_t>()[7] = int64_t{1} << 32;
  });
}

TEST(GivenIdsOfOneRank, AMonolithicBackendTakesNone) {
  run_thread_ranks({.num_ranks = 1}, [&](Group& group) {
    const Spread spread{.name = "monolithic",
                        .backend = All2AllBackend::kAllGatherReduceScatter,
                        .monolithic = true};
    const MoeLayerOptions options = spread.options(SmallLayer::options());
    MoeLayer layer(SmallLayer::shard(spread.parallel(0)), options, Stream::cpu(1), &group);
    WorkspacePool pool;
    const RankTokens tokens = routed(all_hidden());
    const Tensor output = Tensor::empty(tokens.hidden.shape(), DType::kF32);
    expect_error({"topk_ids are given", "monolithic"}, [&] {
      layer.forward(tokens.input(), output, {.stream = Stream::cpu(1), .workspaces = &pool});
    });
    expect_error({"monolithic", "no router"}, [&] {
      MoeLayer(without_router(spread.parallel(0)), options, Stream::cpu(1), &group);
    });
  });
}

// Options of a call take the place of the layer's.
TEST(OptionsOfACall, DecideAboutThatCallAlone) {
  run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
    const Spread spread{.name = "ranks", .dp = 2, .backend = All2AllBackend::kHighThroughput};
    MoeLayerOptions options = SmallLayer::options();
    options.kernel.microbatches = 3;
    options.kernel.min_microbatch_tokens = 0;
    const Stream stream = Stream::cpu(1);
    MoeLayer layer(SmallLayer::shard(spread.parallel(group.rank())), options, stream, &group);
    const Tensor hidden = all_hidden();
    const Tensor output = Tensor::empty(hidden.shape(), DType::kF32);
    WorkspacePool pool;
    const auto run = [&](std::optional<KernelOptions> kernel) {
      poison(output);
      layer.forward({.hidden = hidden, .kernel = kernel}, output, {stream, &pool});
      return output.clone();
    };
    const Tensor expected = run(std::nullopt);
    EXPECT_EQ(layer.last_microbatches(), 3);
    expect_same_bits(run(KernelOptions{.microbatches = 1}), expected);
    EXPECT_EQ(layer.last_microbatches(), 1);
    expect_same_bits(
        run(KernelOptions{.chunk_tokens = 2, .microbatches = 2, .min_microbatch_tokens = 0}),
        expected);
    EXPECT_EQ(layer.last_microbatches(), 2);
    expect_same_bits(run(std::nullopt), expected);
    EXPECT_EQ(layer.last_microbatches(), 3);
  });
}

TEST(OptionsOfACall, AreCheckedLikeThoseOfALayer) {
  MoeLayer layer(SmallLayer::whole(), SmallLayer::options(), {});
  const Tensor hidden = all_hidden();
  const Tensor output = Tensor::empty(hidden.shape(), DType::kF32);
  WorkspacePool pool;
  const auto expect_refused = [&](Parts parts, const KernelOptions& kernel) {
    expect_error(parts, [&] {
      layer.forward({.hidden = hidden, .kernel = kernel}, output, {.workspaces = &pool});
    });
  };
  expect_refused({"microbatches", "2", "1"}, {.microbatches = 2});
  expect_refused({"chunk_tokens", "-1"}, {.chunk_tokens = -1});
  expect_refused({"combine_parts 2", "none"}, {.combine_parts = 2});
  expect_refused({"early_rows 5", "none"}, {.early_rows = 5});
}

}  // namespace
}  // namespace moebius::testing
