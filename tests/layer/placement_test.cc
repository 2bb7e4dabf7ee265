// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Layers whose experts do not lie on the ranks in the order of their ids.  expert_parallel_test.cc
// does the same with experts that a checkpoint loads for such a placement.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/by_name.h"
#include "tests/layer/backends.h"
#include "tests/layer/small_layer.h"
#include "tests/layer/spread.h"

namespace moebius::testing {
namespace {

constexpr int64_t kTokens = 16;

// Rank 0 has four of the experts and rank 1 two.
ExpertPlacement uneven() {
  return ExpertPlacement::from_ranks({1, 0, 0, 1, 0, 0}, 2);
}

// The same with other experts.
ExpertPlacement other() {
  return ExpertPlacement::from_ranks({1, 0, 1, 0, 0, 0}, 2);
}

// The share of a rank: the weights of its experts in the order of their ids.
MoeLayerWeights placed_share(const ParallelConfig& parallel, const ExpertPlacement& placement) {
  MoeLayerWeights weights = SmallLayer::whole();
  weights.config.parallel = parallel;
  weights.placement = placement;
  const int64_t num_local = placement.num_local(parallel.ep_rank);
  for (Tensor* tensor : {&weights.experts.w1, &weights.experts.w2}) {
    const Tensor own = Tensor::empty({num_local, tensor->dim(1), tensor->dim(2)}, tensor->dtype());
    for (int64_t e = 0; e < placement.num_experts(); ++e) {
      if (placement.rank_of(e) == parallel.ep_rank) {
        copy((*tensor)[e], own[placement.local_index(e)], {});
      }
    }
    *tensor = own;
  }
  return weights;
}

std::vector<Spread> spreads() {
  std::vector<Spread> all;
  for (const auto backend : kBackends) {
    all.push_back({.name = std::string(name(backend)), .dp = 2, .backend = backend});
    all.push_back({.name = std::string(name(backend)) + "_tp2", .tp = 2, .backend = backend});
  }
  all.push_back({.name = "monolithic",
                 .dp = 2,
                 .backend = All2AllBackend::kAllGatherReduceScatter,
                 .monolithic = true});
  all.push_back({.name = "none", .tp = 2});
  all.push_back({.name = "none_batched", .tp = 2, .format = ActivationFormat::kBatched});
  return all;
}

class Placement : public ::testing::TestWithParam<Spread> {};

// Every selection of all tokens is computed on the rank that has its expert, and counted there.
TEST_P(Placement, RowsAndLoadsAreThoseOfTheExperts) {
  const Spread& spread = GetParam();
  const ExpertPlacement placement = uneven();
  const Tensor hidden = random_tensor({kTokens, SmallLayer::kHidden}, DType::kF32, 51);
  MoeLayer alone(SmallLayer::whole(), SmallLayer::options(), Stream::cpu(1));
  const Tensor expected = forward(alone, hidden, DType::kF32, Stream::cpu(1));
  const Tensor load = alone.expert_load();
  run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
    const Stream stream = Stream::cpu(1);
    MoeLayer layer(placed_share(spread.parallel(group.rank()), placement),
                   spread.options(SmallLayer::options()), stream, &group);
    const ExpertRange own = expert_range(kTokens, spread.dp, group.rank() / spread.tp);
    const Tensor output = forward(layer, hidden.slice(own.begin, own.end), DType::kF32, stream);
    expect_near_rows(output, expected.slice(own.begin, own.end), 1e-6);
    const Tensor computed = layer.local_expert_load();
    ASSERT_EQ(computed.dim(0), placement.num_local(group.rank()));
    for (int64_t e = 0; e < SmallLayer::kExperts; ++e) {
      if (placement.rank_of(e) == group.rank()) {
        EXPECT_EQ(computed.data<int64_t>()[placement.local_index(e)], load.data<int64_t>()[e])
            << "expert " << e;
      }
    }
    EXPECT_EQ(layer.config().num_local_experts, placement.num_local(group.rank()));
  });
}

// Both placements fit, and rows would go to a rank that takes them for those of another expert.
TEST_P(Placement, RanksThatPlaceExpertsDifferentlyAreRefused) {
  const Spread& spread = GetParam();
  run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
    const ExpertPlacement own = group.rank() == 0 ? uneven() : other();
    expect_error({"all2all " + std::string(name(spread.backend)) +
                  ": expert 2 is placed on rank 1 by rank 1, and on rank 0 by rank 0"},
                 [&] {
                   MoeLayer(placed_share(spread.parallel(group.rank()), own),
                            spread.options(SmallLayer::options()), Stream::cpu(1), &group);
                 });
  });
}

INSTANTIATE_TEST_SUITE_P(Spreads, Placement, ::testing::ValuesIn(spreads()), by_name);

TEST(Placements, ThatDoNotFitAreRefusedOnEveryRank) {
  const auto expect_refused = [](Parts parts, const ExpertPlacement& placement) {
    run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
      MoeLayerWeights weights = SmallLayer::shard(
          ParallelConfig::make(1, 0, 2, group.rank(), true, All2AllBackend::kHighThroughput));
      weights.placement = placement;
      expect_error(parts, [&] {
        MoeLayer(std::move(weights), SmallLayer::options(), Stream::cpu(1), &group);
      });
    });
  };
  expect_refused({"experts of the placement", "5", "6"}, ExpertPlacement::linear(5, 2));
  expect_refused({"ranks of the placement", "3", "2"}, ExpertPlacement::linear(6, 3));
  expect_refused({"experts placed on rank 1", "0", "1"},
                 ExpertPlacement::from_ranks({0, 0, 0, 0, 0, 0}, 2));
}

// A rank finds a transport of either placement, so none is made that would compare them.
TEST(Placements, AreComparedWhereLayersShareTransports) {
  for (const auto backend : {All2AllBackend::kHighThroughput, All2AllBackend::kLowLatency}) {
    run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
      MoeLayerOptions options = SmallLayer::options();
      options.transports = std::make_shared<Transports>(group);
      const auto make = [&](const ExpertPlacement& placement) {
        MoeLayer(
            placed_share(ParallelConfig::make(1, 0, 2, group.rank(), true, backend), placement),
            options, Stream::cpu(1), &group);
      };
      make(uneven());
      make(other());
      expect_error({"expert 2 is placed on rank 1 by rank 1, and on rank 0 by rank 0"},
                   [&] { make(group.rank() == 0 ? uneven() : other()); });
      make(other());
    });
  }
}

// The weights that are given must be those of the placement.
TEST(Placements, NeedTheirExperts) {
  run_thread_ranks({.num_ranks = 2}, [&](Group& group) {
    MoeLayerWeights weights = SmallLayer::shard(
        ParallelConfig::make(1, 0, 2, group.rank(), true, All2AllBackend::kHighThroughput));
    weights.placement = uneven();
    expect_error({"shape of w1", group.rank() == 0 ? "[4, 96, 128]" : "[2, 96, 128]"}, [&] {
      MoeLayer(std::move(weights), SmallLayer::options(), Stream::cpu(1), &group);
    });
  });
}

}  // namespace
}  // namespace moebius::testing
