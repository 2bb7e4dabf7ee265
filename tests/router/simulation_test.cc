// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "moebius/router.h"
#include "tests/conformance/router_runs.h"

namespace moebius {
namespace {

using Ids = std::vector<int32_t>;

RouterConfig simulated(Simulation simulation, int64_t num_experts, int64_t topk, uint64_t seed) {
  RouterConfig config;
  config.num_experts = num_experts;
  config.topk = topk;
  config.simulation = simulation;
  config.seed = seed;
  return config;
}

Ids draw(const Router& router, int64_t num_tokens, int num_threads = 2) {
  const int64_t topk = router.config().topk;
  const Tensor logits = Tensor::zeros({num_tokens, router.config().num_experts}, DType::kF32);
  const Tensor ids = Tensor::zeros({num_tokens, topk}, DType::kI32);
  const Tensor weights = Tensor::zeros({num_tokens, topk}, DType::kF32);
  router.select(logits, ids, weights, Stream::cpu(num_threads));
  for (int64_t i = 0; i < weights.numel(); ++i) {
    EXPECT_EQ(weights.data<float>()[i], 1.0f / static_cast<float>(topk));
  }
  return {ids.data<int32_t>(), ids.data<int32_t>() + ids.numel()};
}

// For each expert, the share of the tokens that chose it.
std::vector<double> frequencies(const Ids& ids, int64_t num_experts, int64_t num_tokens) {
  std::vector<double> share(static_cast<size_t>(num_experts));
  for (const int32_t id : ids) {
    share[static_cast<size_t>(id)] += 1.0 / static_cast<double>(num_tokens);
  }
  return share;
}

class Simulated : public ::testing::TestWithParam<Simulation> {};

TEST_P(Simulated, IdsOfATokenAreDistinctAndInRange) {
  for (const int64_t topk : {1, 4, 16}) {
    const Router router(simulated(GetParam(), 16, topk, 3), {});
    const Ids ids = draw(router, 500);
    for (size_t t = 0; t < 500; ++t) {
      const auto row = ids.begin() + static_cast<ptrdiff_t>(t) * topk;
      const std::set<int32_t> distinct(row, row + topk);
      EXPECT_EQ(static_cast<int64_t>(distinct.size()), topk);
      EXPECT_GE(*distinct.begin(), 0);
      EXPECT_LT(*distinct.rbegin(), 16);
    }
  }
}

TEST_P(Simulated, RepeatsBySeedAndCallNumber) {
  const RouterConfig config = simulated(GetParam(), 64, 6, 7);
  const Router first(config, {}), second(config, {});
  const Ids call0 = draw(first, 300, 1), call1 = draw(first, 300, 1);
  EXPECT_EQ(draw(second, 300, 2), call0);
  EXPECT_EQ(draw(second, 300, 5), call1);
  EXPECT_NE(call0, call1);
  EXPECT_NE(draw(Router(simulated(GetParam(), 64, 6, 8), {}), 300), call0);
}

TEST_P(Simulated, NoTokensAreValid) {
  const Router router(simulated(GetParam(), 8, 2, 0), {});
  const Tensor logits = Tensor::zeros({1, 8}, DType::kF32);
  for (const int num_threads : {1, 2}) {
    const testing::Selection out = testing::run_select(router, logits.slice(0, 0), num_threads);
    for (int64_t k = 0; k < 2; ++k) {
      EXPECT_EQ(out.all_ids.data<int32_t>()[k], -77);
      EXPECT_EQ(out.all_weights.data<float>()[k], -77.0f);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Distributions,
                         Simulated,
                         ::testing::Values(Simulation::kUniform, Simulation::kZipf));

TEST(SimulatedUniform, ExpertsAreEquallyLikelyInEverySlot) {
  constexpr int64_t kExperts = 32, kTopk = 4, kTokens = 40000;
  const Ids ids = draw(Router(simulated(Simulation::kUniform, kExperts, kTopk, 1), {}), kTokens);
  for (int64_t slot = 0; slot < kTopk; ++slot) {
    Ids of_slot;
    for (size_t i = static_cast<size_t>(slot); i < ids.size(); i += kTopk) {
      of_slot.push_back(ids[i]);
    }
    const auto share = frequencies(of_slot, kExperts, kTokens);
    // The standard deviation of a share is 8.7e-4, and five of them are allowed.
    for (const double s : share) {
      EXPECT_NEAR(s, 1.0 / kExperts, 4.4e-3) << "slot " << slot;
    }
  }
}

TEST(SimulatedZipf, FrequenciesFollowThePowerOfTheRank) {
  constexpr int64_t kExperts = 16, kTokens = 40000;
  RouterConfig config = simulated(Simulation::kZipf, kExperts, 1, 5);
  for (const double exponent : {0.0, 1.0, 1.5}) {
    config.zipf_exponent = exponent;
    auto share = frequencies(draw(Router(config, {}), kTokens), kExperts, kTokens);
    std::sort(share.begin(), share.end(), std::greater<>());
    double total = 0.0;
    for (int64_t r = 1; r <= kExperts; ++r) {
      total += std::pow(static_cast<double>(r), -exponent);
    }
    for (int64_t r = 1; r <= kExperts; ++r) {
      const double expected = std::pow(static_cast<double>(r), -exponent) / total;
      const double deviation = std::sqrt(expected * (1.0 - expected) / kTokens);
      EXPECT_NEAR(share[static_cast<size_t>(r - 1)], expected, 5.0 * deviation)
          << "rank " << r << " exponent " << exponent;
    }
  }
}

TEST(SimulatedZipf, LaterSlotsAreDrawnFromWhatIsLeft) {
  // With E = 3 and exponent 1 the masses are 6/11, 3/11 and 2/11.  The second slot has the most
  // likely expert with probability 3/11 * 6/8 + 2/11 * 6/9 = 0.32576.
  constexpr int64_t kTokens = 40000;
  const Ids ids = draw(Router(simulated(Simulation::kZipf, 3, 2, 2), {}), kTokens);
  Ids first, second;
  for (size_t i = 0; i < ids.size(); i += 2) {
    first.push_back(ids[i]);
    second.push_back(ids[i + 1]);
  }
  const auto share = frequencies(first, 3, kTokens);
  const auto top = std::max_element(share.begin(), share.end()) - share.begin();
  EXPECT_NEAR(share[static_cast<size_t>(top)], 6.0 / 11, 0.0125);
  EXPECT_NEAR(frequencies(second, 3, kTokens)[static_cast<size_t>(top)], 0.32576, 0.0125);
}

TEST(SimulatedZipf, TheLikelyExpertsStayTheSameAcrossCallsAndDifferAcrossSeeds) {
  const auto most_likely = [](const Ids& ids) {
    const auto share = frequencies(ids, 64, 2000);
    return std::max_element(share.begin(), share.end()) - share.begin();
  };
  std::set<ptrdiff_t> tops;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const Router router(simulated(Simulation::kZipf, 64, 1, seed), {});
    const auto top = most_likely(draw(router, 2000));
    EXPECT_EQ(most_likely(draw(router, 2000)), top);
    tops.insert(top);
  }
  EXPECT_GT(tops.size(), 3u);
}

}  // namespace
}  // namespace moebius
