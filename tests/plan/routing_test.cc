// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Compares expected copies with the enumeration of all sets, and with what the library counts.
#include "plan/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include "moebius/dispatch.h"
#include "moebius/router.h"
#include "tests/error_text.h"
#include "tests/plan/problems.h"

namespace moebius::plan {
namespace {

// Computes the probability from all choices of open groups and all sets with experts in each.
double reached_by_enumeration(const RoutingFacts& f,
                              const std::vector<double>& weights,
                              const std::vector<double>& share) {
  const int64_t group_size = f.num_experts / f.num_groups;
  double all = 0;
  double missed = 0;
  for (uint32_t open = 0; open < 1U << f.num_groups; ++open) {
    if (std::popcount(open) != f.topk_groups) {
      continue;
    }
    for (uint32_t set = 0; set < 1U << f.num_experts; ++set) {
      if (std::popcount(set) != f.topk) {
        continue;
      }
      double weight = 1;
      double elsewhere = 1;
      uint32_t used = 0;
      for (int64_t e = 0; e < f.num_experts; ++e) {
        if ((set >> e & 1U) != 0) {
          weight *= (open >> (e / group_size) & 1U) != 0 ? weights[static_cast<size_t>(e)] : 0;
          elsewhere *= 1 - share[static_cast<size_t>(e)];
          used |= 1U << (e / group_size);
        }
      }
      weight *= used == open ? 1 : 0;
      all += weight;
      missed += weight * elsewhere;
    }
  }
  return 1 - missed / all;
}

TEST(Routing, MatchesEnumerationOfAllSets) {
  const std::vector<double> shares[] = {{1, 1, 0, 0, 0, 0, 0, 0},
                                        {0, 0, 0, 1, 1, 1, 0, 0},
                                        {0.5, 0, 0, 1.0 / 3, 0, 1, 0, 0},
                                        {1, 1, 1, 1, 1, 1, 1, 1},
                                        {0, 0, 0, 0, 0, 0, 0, 0}};
  for (const RoutingFacts& facts :
       {RoutingFacts{8, 1}, RoutingFacts{8, 3}, RoutingFacts{8, 8}, RoutingFacts{8, 3, 4, 2},
        RoutingFacts{8, 4, 2, 1}, RoutingFacts{8, 3, 4, 2, 1.5}, RoutingFacts{8, 2, 1, 1, 1.0}}) {
    const RoutingModel model(facts);
    std::vector<double> weights(8);  // expert n * 5 mod 8 is the n-th in popularity
    for (size_t n = 0; n < 8; ++n) {
      weights[n * 5 % 8] = std::pow(static_cast<double>(n + 1), -facts.skew);
    }
    for (const auto& share : shares) {
      EXPECT_NEAR(model.reached(share), reached_by_enumeration(facts, weights, share), 1e-12)
          << "topk " << facts.topk << ", groups " << facts.topk_groups << " of " << facts.num_groups
          << ", skew " << facts.skew;
    }
    double selections = 0;
    for (size_t e = 0; e < 8; ++e) {
      std::vector<double> share(8, 0.0);
      share[e] = 1;
      EXPECT_NEAR(model.selected(static_cast<int64_t>(e)), model.reached(share), 1e-15);
      selections += model.selected(static_cast<int64_t>(e));
    }
    EXPECT_NEAR(selections, static_cast<double>(facts.topk), 1e-12);
  }
}

// This would take an hour if every expert were left out by going through all others.
TEST(Routing, ManyExpertsAreNoneTooMany) {
  constexpr int64_t kExperts = int64_t{1} << 18;
  for (const RoutingFacts& facts :
       {RoutingFacts{kExperts, 8, 1, 1, 1.0}, RoutingFacts{kExperts, 8, 64, 4}}) {
    const RoutingModel model(facts);
    double selections = 0;
    for (int64_t e = 0; e < kExperts; ++e) {
      selections += model.selected(e);
    }
    EXPECT_NEAR(selections, 8, 1e-9);
  }
}

// All orders of 8 experts by score are equally likely.  The groups with the best experts are open.
double reached_by_all_orders(const RoutingFacts& f, const std::vector<double>& share) {
  const int64_t group_size = f.num_experts / f.num_groups;
  std::vector<int64_t> order(static_cast<size_t>(f.num_experts));
  std::iota(order.begin(), order.end(), 0);
  double orders = 0;
  double missed = 0;
  do {
    uint32_t open = 0;
    int64_t chosen = 0;
    double elsewhere = 1;
    for (const int64_t e : order) {
      const uint32_t group = 1U << (e / group_size);
      open |= std::popcount(open) < f.topk_groups ? group : 0;
      if ((open & group) != 0 && chosen < f.topk) {
        elsewhere *= 1 - share[static_cast<size_t>(e)];
        ++chosen;
      }
    }
    orders += 1;
    missed += elsewhere;
  } while (std::next_permutation(order.begin(), order.end()));
  return 1 - missed / orders;
}

TEST(Routing, MoreOpenGroupsThanSelectionsLeaveNothingOut) {
  for (const RoutingFacts& facts :
       {RoutingFacts{8, 2, 4, 3}, RoutingFacts{8, 2, 4, 2}, RoutingFacts{8, 1, 4, 4},
        RoutingFacts{8, 2, 8, 3}, RoutingFacts{8, 3, 4, 4}}) {
    const RoutingModel model(facts);
    for (const std::vector<double>& share :
         {std::vector<double>{1, 1, 0, 0, 0, 0, 0, 0}, {0.5, 0, 0, 1.0 / 3, 0, 1, 0, 0}}) {
      EXPECT_NEAR(model.reached(share), reached_by_all_orders(facts, share), 1e-12)
          << "topk " << facts.topk << ", groups " << facts.topk_groups << " of "
          << facts.num_groups;
    }
  }
  // A model has this configuration: 4 of 8 groups for 2 experts.
  EXPECT_NEAR(RoutingModel({64, 2, 8, 4}).selected(63), 2.0 / 64, 1e-15);
}

TEST(Routing, UniformIsTheHypergeometricFormula) {
  // With 256 experts, top-8 and 32 experts on a rank it is 1 - C(224, 8) / C(256, 8).
  double none = 1;
  for (int i = 0; i < 8; ++i) {
    none *= (224.0 - i) / (256.0 - i);
  }
  std::vector<double> share(256, 0.0);
  std::fill_n(share.begin(), 32, 1.0);
  EXPECT_NEAR(RoutingModel({.num_experts = 256, .topk = 8}).reached(share), 1 - none, 1e-14);
}

// The bound is five standard deviations of the mean over tokens.
TEST(Routing, MatchesWhatRoutesCount) {
  for (const auto& [ranks, per_node] : {std::pair(4, 2), std::pair(7, 3), std::pair(64, 8)}) {
    Deployment d = small_deployment(ranks, per_node, 4096);
    d.layer.routing = {.num_experts = 100, .topk = 6};
    const RoutingModel model(d.layer.routing);
    const Copies expected = expected_copies(d, model, 1);
    const Copies counted =
        counted_copies(d, {random_ids(d.layer.routing, d.tokens, static_cast<uint64_t>(ranks))});
    double mean = 0;
    double variance = 0;  // of the number of ranks that a token goes to
    double seen = 0;
    std::vector<std::vector<double>> shares;
    for (int r = 0; r < ranks; ++r) {
      std::vector<double>& share = shares.emplace_back(100, 0.0);
      for (int64_t p = d.places_of(r).begin; p < d.places_of(r).end; ++p) {
        share[static_cast<size_t>(p)] = 1;
      }
    }
    for (int r = 0; r < ranks; ++r) {
      const double p = expected.rank_copies(0, r);
      mean += p;
      seen += counted.rank_copies(0, r);
      variance += p * (1 - p);
      for (int s = 0; s < r; ++s) {
        std::vector<double> both = shares[static_cast<size_t>(r)];
        for (size_t e = 0; e < both.size(); ++e) {
          both[e] += shares[static_cast<size_t>(s)][e];
        }
        const double q = expected.rank_copies(0, s);
        variance += 2 * (p + q - model.reached(both) - p * q);
      }
      const double tokens = static_cast<double>(d.tokens);
      EXPECT_NEAR(counted.rank_copies(0, r), tokens * p, 5 * std::sqrt(tokens * p * (1 - p)));
      EXPECT_NEAR(counted.rank_selections(0, r), tokens * expected.rank_selections(0, r),
                  5 * std::sqrt(tokens * 6));
    }
    EXPECT_NEAR(seen / 4096, mean, 5 * std::sqrt(variance / 4096)) << ranks;
    for (int n = 0; n < expected.num_nodes; ++n) {
      const double p = expected.node_copies(0, n);
      EXPECT_NEAR(counted.node_copies(0, n) / 4096, p, 5 * std::sqrt(p * (1 - p) / 4096) + 1e-9);
    }
  }
}

// Compares with the layout of the transport itself, between threads as ranks of two nodes.
TEST(Routing, MatchesLayoutOfHighThroughput) {
  const Deployment d = small_deployment(4, 2, 2048);
  const Copies expected = expected_copies(d, RoutingModel(d.layer.routing), 2048);
  run_thread_ranks({.num_ranks = 4, .ranks_per_node = 2}, [&](Group& group) {
    HighThroughput transport(group, ExpertPlacement::linear(16, 4), DispatchConfig::for_dispatch(4),
                             DispatchConfig::for_combine(4));
    const auto ids = random_ids(d.layer.routing, 2048, static_cast<uint64_t>(group.rank()));
    const DispatchLayout layout = transport.layout(
        Tensor::borrow(const_cast<int32_t*>(ids.data()), {2048, 4}, DType::kI32), Stream::cpu());
    for (int r = 0; r < 4; ++r) {
      const double p = expected.rank_copies(0, r) / 2048;
      EXPECT_NEAR(layout.tokens_per_rank.data<int32_t>()[r], 2048 * p,
                  5 * std::sqrt(2048 * p * (1 - p)));
    }
    for (int n = 0; n < 2; ++n) {
      const double p = expected.node_copies(0, n) / 2048;
      EXPECT_NEAR(layout.tokens_per_node.data<int32_t>()[n], 2048 * p,
                  5 * std::sqrt(2048 * p * (1 - p)));
    }
  });
}

// The router opens groups by their two best experts, so that sets are not equally likely.  The
// copies per token differ by no more than 1 %.
TEST(Routing, GroupLimitedRoutersComeCloseToTheModel) {
  Deployment d = preset_deployment("deepseek-v3", "none", 64);
  d.device = Device::cpu();
  RouterConfig config;
  config.num_experts = 256;
  config.topk = 8;
  config.num_groups = 8;
  config.topk_groups = 4;
  config.scoring = Scoring::kSigmoid;
  RouterWeights weights;
  weights.correction_bias = Tensor::zeros({256}, DType::kF32);
  constexpr int64_t kTokens = 8192;
  const Tensor logits = Tensor::empty({kTokens, 256}, DType::kF32);
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::generate_n(logits.data<float>(), logits.numel(), [&] { return normal(random); });
  const Tensor ids = Tensor::empty({kTokens, 8}, DType::kI32);
  const Tensor scores = Tensor::empty({kTokens, 8}, DType::kF32);
  Router(config, weights).select(logits, ids, scores, Stream::cpu());
  const Copies counted = counted_copies(
      d, {std::vector<int32_t>(ids.data<int32_t>(), ids.data<int32_t>() + ids.numel())});
  const Copies expected = expected_copies(d, RoutingModel(d.layer.routing), kTokens);
  const auto sum = [](const std::vector<double>& v) {
    return std::accumulate(v.begin(), v.end(), 0.0);
  };
  EXPECT_NEAR(sum(counted.to_rank) / sum(expected.to_rank), 1, 0.01);
  EXPECT_NEAR(sum(counted.to_node) / sum(expected.to_node), 1, 0.01);
  EXPECT_LE(sum(counted.to_node), 4.0 * kTokens);
}

TEST(Routing, ReplicasShareTheRows) {
  Deployment d = small_deployment(32, 8, 1);  // each of 16 experts exists twice
  d.redundant_experts = 16;
  const RoutingModel model(d.layer.routing);
  const Copies copies = expected_copies(d, model, 1);
  double selections = 0;
  for (int r = 0; r < 32; ++r) {
    EXPECT_NEAR(copies.rank_copies(0, r), 0.125, 1e-12);  // half of 4 / 16
    selections += copies.rank_selections(0, r);
  }
  EXPECT_NEAR(selections, 4, 1e-12);
}

TEST(Routing, RefusesWhatCannotBeRouted) {
  EXPECT_THROW(RoutingModel({.num_experts = 8, .topk = 9}), InvalidArgument);
  EXPECT_THROW(RoutingModel({.num_experts = 8, .topk = 2, .num_groups = 3}), InvalidArgument);
  EXPECT_THROW(RoutingModel({.num_experts = 8, .topk = 3, .num_groups = 4, .topk_groups = 1}),
               InvalidArgument);
  EXPECT_THROW(RoutingModel({.num_experts = 8, .topk = 2, .num_groups = 4, .topk_groups = 5}),
               InvalidArgument);
  EXPECT_THROW(RoutingModel({.num_experts = 8, .topk = 2, .skew = -1}), InvalidArgument);
  testing::expect_mentions(testing::message_of([] { expect_valid(small_deployment(17, 0, 1)); }),
                           "17 ranks, but small has 16 experts");
}

}  // namespace
}  // namespace moebius::plan
