// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Examples of select() that were worked out by hand.  They run on `ref`; the conformance suite
// compares the other implementations with it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "moebius/router.h"

namespace moebius {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

using Floats = std::vector<float>;
using Ids = std::vector<int32_t>;

// e^logit is 1, 2, 3 and 4, so softmax gives tenths.
const Floats kTenths = {0.0f, std::log(2.0f), std::log(3.0f), std::log(4.0f)};

// The logit whose sigmoid is p.
float logit_of(float p) {
  return std::log(p / (1.0f - p));
}

class Select : public ::testing::Test {
 protected:
  void SetUp() override { setenv("MOEBIUS_ROUTER", "ref", 1); }
  void TearDown() override { unsetenv("MOEBIUS_ROUTER"); }

  // Routes one row of logits.
  void run(RouterConfig config, Floats logits, Floats correction_bias = {}) {
    const auto num_experts = static_cast<int64_t>(logits.size());
    config.num_experts = num_experts;
    RouterWeights router_weights;
    router_weights.expert_scale = expert_scale;
    if (!correction_bias.empty()) {
      router_weights.correction_bias =
          Tensor::borrow(correction_bias.data(), {num_experts}, DType::kF32);
    }
    ids.assign(static_cast<size_t>(config.topk), -7);
    weights.assign(static_cast<size_t>(config.topk), kNaN);
    Router(config, router_weights)
        .select(Tensor::borrow(logits.data(), {1, num_experts}, DType::kF32),
                Tensor::borrow(ids.data(), {1, config.topk}, DType::kI32),
                Tensor::borrow(weights.data(), {1, config.topk}, DType::kF32), Stream::cpu(1));
    std::vector<int64_t> wide(ids.size(), -7);
    Router(config, router_weights)
        .select(Tensor::borrow(logits.data(), {1, num_experts}, DType::kF32),
                Tensor::borrow(wide.data(), {1, config.topk}, DType::kI64),
                Tensor::borrow(weights.data(), {1, config.topk}, DType::kF32), Stream::cpu(1));
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), wide.begin()));
  }

  void expect_weights(const Floats& expected) {
    ASSERT_EQ(weights.size(), expected.size());
    for (size_t k = 0; k < expected.size(); ++k) {
      EXPECT_NEAR(weights[k], expected[k], 1e-6f) << "slot " << k;
    }
  }

  Tensor expert_scale;
  Ids ids;
  Floats weights;
};

TEST_F(Select, SoftmaxRunsOverAllExperts) {
  run({.topk = 2}, kTenths);
  EXPECT_EQ(ids, (Ids{3, 2}));
  expect_weights({0.4f, 0.3f});
}

TEST_F(Select, RenormalizedWeightsSumToOne) {
  run({.topk = 2, .renormalize = true}, kTenths);
  EXPECT_EQ(ids, (Ids{3, 2}));
  expect_weights({4.0f / 7, 3.0f / 7});
}

TEST_F(Select, RoutedScalingComesAfterRenormalization) {
  run({.topk = 2, .renormalize = true, .routed_scaling_factor = 2.5f}, kTenths);
  expect_weights({10.0f / 7, 7.5f / 7});
}

TEST_F(Select, RoutedScalingAppliesWithoutRenormalization) {
  run({.topk = 1, .routed_scaling_factor = 16.0f}, kTenths);
  expect_weights({6.4f});
}

TEST_F(Select, SoftmaxAfterTopkRunsOverTheChosen) {
  run({.topk = 2, .score_after_topk = true}, {-5.0f, 1.0f + std::log(3.0f), 0.5f, 1.0f});
  EXPECT_EQ(ids, (Ids{1, 3}));
  expect_weights({0.75f, 0.25f});
}

TEST_F(Select, SigmoidScoresEachExpertByItself) {
  run({.topk = 3, .scoring = Scoring::kSigmoid}, {logit_of(0.2f), 0.0f, logit_of(0.9f), -200.0f});
  EXPECT_EQ(ids, (Ids{2, 1, 0}));
  expect_weights({0.9f, 0.5f, 0.2f});
}

TEST_F(Select, SqrtSoftplusIsTheRootOfLogOfOnePlusExp) {
  // log(1 + exp(x)) = y at x = log(exp(y) - 1).
  run({.topk = 3, .scoring = Scoring::kSqrtSoftplus},
      {std::log(std::expm1(1.0f)), 100.0f, std::log(std::expm1(4.0f))});
  EXPECT_EQ(ids, (Ids{1, 2, 0}));
  expect_weights({10.0f, 2.0f, 1.0f});
}

TEST_F(Select, Llama4TakesTheBestLogitAndItsSigmoid) {
  run({.topk = 1, .scoring = Scoring::kSigmoid, .score_after_topk = true},
      {-3.0f, logit_of(0.25f), -9.0f});
  EXPECT_EQ(ids, (Ids{1}));
  expect_weights({0.25f});
}

TEST_F(Select, ScoreAfterTopkChoosesWhereSigmoidSaturates) {
  // Both sigmoids are 1 in f32; the logits still tell them apart.
  run({.topk = 1, .scoring = Scoring::kSigmoid, .score_after_topk = true}, {30.0f, 40.0f});
  EXPECT_EQ(ids, (Ids{1}));
  run({.topk = 1, .scoring = Scoring::kSigmoid}, {30.0f, 40.0f});
  EXPECT_EQ(ids, (Ids{0}));
}

// With epsilon 0.25 the logits of at least half the best one are near.  The first choice weighs 4
// against 3 and 2.5, and the second one weighs 3 against 2.5.
TEST_F(Select, TheSparseMixerWeighsAgainstExpertsThatAreNear) {
  run({.topk = 2, .scoring = Scoring::kSparseMixer, .mixer_epsilon = 0.25f},
      {3.0f, 1.0f, 4.0f, 2.5f, -4.0f});
  const float e = std::exp(1.0f);
  EXPECT_EQ(ids, (Ids{2, 0}));
  const float first = 1.0f + 1.0f / e + std::exp(-1.5f);
  EXPECT_NEAR(weights[0], 1.0f / first, 1e-6f);
  const float second = 1.0f + std::exp(-0.5f);
  EXPECT_NEAR(weights[1], 1.0f / second, 1e-6f);
}

// Below zero a logit is compared by its own size.
TEST_F(Select, TheSparseMixerTakesTheLargerMagnitude) {
  run({.topk = 1, .scoring = Scoring::kSparseMixer, .mixer_epsilon = 0.25f}, {-1.0f, -1.5f, -3.0f});
  EXPECT_EQ(ids, (Ids{0}));
  EXPECT_NEAR(weights[0], 1.0f / (1.0f + std::exp(-0.5f)), 1e-6f);
}

TEST_F(Select, ScalesOfExpertsComeLast) {
  Floats scale = {1.0f, 2.0f, 3.0f, 0.5f};
  expert_scale = Tensor::borrow(scale.data(), {4}, DType::kF32);
  run({.topk = 2, .renormalize = true, .routed_scaling_factor = 7.0f}, kTenths);
  EXPECT_EQ(ids, (Ids{3, 2}));
  EXPECT_NEAR(weights[0], 4.0f / 7.0f * 7.0f * 0.5f, 1e-5f);
  EXPECT_NEAR(weights[1], 3.0f / 7.0f * 7.0f * 3.0f, 1e-5f);
}

TEST_F(Select, CorrectionBiasChoosesButDoesNotWeigh) {
  run({.topk = 2, .scoring = Scoring::kSigmoid},
      {logit_of(0.5f), logit_of(0.6f), logit_of(0.7f), logit_of(0.1f)}, {0.3f, 0.0f, 0.0f, 0.65f});
  EXPECT_EQ(ids, (Ids{0, 3}));  // c = 0.8, 0.6, 0.7, 0.75
  expect_weights({0.5f, 0.1f});
}

TEST_F(Select, CorrectionBiasWithRenormalization) {
  run({.topk = 2, .scoring = Scoring::kSigmoid, .renormalize = true, .routed_scaling_factor = 2.0f},
      {logit_of(0.5f), logit_of(0.6f), logit_of(0.7f), logit_of(0.1f)}, {0.3f, 0.0f, 0.0f, 0.65f});
  expect_weights({2.0f * 5 / 6, 2.0f / 6});
}

TEST_F(Select, InfinitelyNegativeCorrectionBiasMasksAnExpert) {
  run({.topk = 2}, kTenths, {0.0f, 0.0f, 0.0f, -kInf});
  EXPECT_EQ(ids, (Ids{2, 1}));
  expect_weights({0.3f, 0.2f});
}

TEST_F(Select, TiesGoToTheLowestExpertId) {
  run({.topk = 3}, {1.0f, 2.0f, 1.0f, 2.0f, 1.0f});
  EXPECT_EQ(ids, (Ids{1, 3, 0}));
  run({.topk = 2, .scoring = Scoring::kSigmoid}, {0.0f, -0.0f, 0.0f});
  EXPECT_EQ(ids, (Ids{0, 1}));
}

TEST_F(Select, AllExpertsCanBeChosen) {
  run({.topk = 4}, kTenths);
  EXPECT_EQ(ids, (Ids{3, 2, 1, 0}));
  expect_weights({0.4f, 0.3f, 0.2f, 0.1f});
}

const Floats kGrouped = {logit_of(0.9f), logit_of(0.1f),   // best 0.9, sum 1.0
                         logit_of(0.6f), logit_of(0.7f),   // best 0.7, sum 1.3
                         logit_of(0.8f), logit_of(0.3f)};  // best 0.8, sum 1.1

TEST_F(Select, GroupsAreScoredByTheirBestExpertWithoutCorrectionBias) {
  run({.topk = 2, .scoring = Scoring::kSigmoid, .num_groups = 3, .topk_groups = 1}, kGrouped);
  EXPECT_EQ(ids, (Ids{0, 1}));
  expect_weights({0.9f, 0.1f});
}

TEST_F(Select, GroupsAreScoredByTheirTwoBestExpertsWithCorrectionBias) {
  run({.topk = 2, .scoring = Scoring::kSigmoid, .num_groups = 3, .topk_groups = 1}, kGrouped,
      Floats(6, 0.0f));
  EXPECT_EQ(ids, (Ids{3, 2}));
  expect_weights({0.7f, 0.6f});
}

TEST_F(Select, ExpertsOfOtherGroupsAreNotEligible) {
  run({.topk = 3, .scoring = Scoring::kSigmoid, .num_groups = 3, .topk_groups = 2}, kGrouped,
      Floats(6, 0.0f));
  EXPECT_EQ(ids, (Ids{4, 3, 2}));
}

TEST_F(Select, CorrectionBiasCountsInTheGroupScore) {
  run({.topk = 1, .scoring = Scoring::kSigmoid, .num_groups = 3, .topk_groups = 1}, kGrouped,
      {0.5f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f});
  EXPECT_EQ(ids, (Ids{0}));
  expect_weights({0.9f});
}

TEST_F(Select, GroupTiesGoToTheLowerGroup) {
  run({.topk = 2, .scoring = Scoring::kSigmoid, .num_groups = 3, .topk_groups = 1},
      {0.0f, 1.0f, 1.0f, 0.5f, 1.0f, 0.9f});
  EXPECT_EQ(ids, (Ids{1, 0}));
}

TEST_F(Select, GroupsOfOneExpertEachMeanPlainOrBiasedTopK) {
  run({.topk = 3, .num_groups = 4, .topk_groups = 3}, kTenths);
  EXPECT_EQ(ids, (Ids{3, 2, 1}));
  expect_weights({0.4f, 0.3f, 0.2f});
  run({.topk = 3, .num_groups = 4, .topk_groups = 3}, kTenths, {0.25f, 0.0f, 0.0f, 0.0f});
  EXPECT_EQ(ids, (Ids{3, 0, 2}));  // c = 0.35, 0.2, 0.3, 0.4
  expect_weights({0.4f, 0.1f, 0.3f});
  const Router router({.num_experts = 4, .topk = 3, .num_groups = 4, .topk_groups = 3}, {});
  EXPECT_EQ(router.config().num_groups, 1);
  EXPECT_EQ(router.config().topk_groups, 1);
}

TEST_F(Select, GroupsLimitTheChoice) {
  run({.topk = 2, .num_groups = 2}, kTenths);
  EXPECT_EQ(ids, (Ids{3, 2}));
  run({.topk = 2, .num_groups = 2}, kTenths, {0.9f, 0.0f, 0.0f, 0.0f});
  EXPECT_EQ(ids, (Ids{0, 1}));
}

TEST_F(Select, SoftmaxOfARowWithNaNHasNothingToChooseFrom) {
  run({.topk = 2, .renormalize = true, .routed_scaling_factor = 3.0f}, {1.0f, kNaN, 5.0f, 2.0f});
  EXPECT_EQ(ids, (Ids{0, 1}));
  expect_weights({0.5f, 0.5f});
}

TEST_F(Select, RowsWithoutAFiniteScoreGetTheFirstIds) {
  for (const float value : {kNaN, kInf, -kInf}) {
    run({.topk = 4}, Floats(6, value));
    EXPECT_EQ(ids, (Ids{0, 1, 2, 3})) << value;
    expect_weights(Floats(4, 0.25f));
  }
  run({.topk = 2, .scoring = Scoring::kSigmoid, .num_groups = 2}, Floats(4, kNaN));
  EXPECT_EQ(ids, (Ids{0, 1}));
  expect_weights({0.5f, 0.5f});
}

TEST_F(Select, SigmoidPassesOverASingleNaN) {
  run({.topk = 2, .scoring = Scoring::kSigmoid}, {0.0f, kNaN, logit_of(0.75f)});
  EXPECT_EQ(ids, (Ids{2, 0}));
  expect_weights({0.75f, 0.5f});
}

TEST_F(Select, SlotsWithoutAnEligibleExpertWeighNothing) {
  run({.topk = 3, .scoring = Scoring::kSigmoid, .renormalize = true}, {kNaN, kNaN, 0.0f, kNaN});
  EXPECT_EQ(ids, (Ids{2, 0, 1}));
  expect_weights({1.0f, 0.0f, 0.0f});
}

TEST_F(Select, AGroupWithANonFiniteScoreIsNotEligible) {
  // Group 0 would win by its best logit.
  run({.topk = 2, .score_after_topk = true, .num_groups = 2}, {kInf, 9.0f, 1.0f, 1.0f});
  EXPECT_EQ(ids, (Ids{2, 3}));
  expect_weights({0.5f, 0.5f});
}

TEST_F(Select, RenormalizingNothingButZerosStaysFinite) {
  run({.topk = 2, .scoring = Scoring::kSigmoid, .renormalize = true}, {-300.0f, -300.0f, -400.0f});
  EXPECT_EQ(ids, (Ids{0, 1}));
  expect_weights({0.0f, 0.0f});
}

TEST_F(Select, TinySumsAreStillRenormalized) {
  // sigmoid(-30) is 9.4e-14: adding 1e-20 to the sum would not change it.
  run({.topk = 2, .scoring = Scoring::kSigmoid, .renormalize = true}, {-30.0f, -30.0f});
  expect_weights({0.5f, 0.5f});
}

TEST(SelectCustom, TheCallbackReplacesTheMethod) {
  RouterConfig config = {.num_experts = 4, .topk = 2};
  config.custom = [](const Tensor& logits, const Tensor& ids, const Tensor& weights) {
    for (int64_t t = 0; t < logits.dim(0); ++t) {
      ids.data<int32_t>()[2 * t] = static_cast<int32_t>(logits.data<float>()[4 * t]);
      ids.data<int32_t>()[2 * t + 1] = -1;
      weights.data<float>()[2 * t] = 0.125f;
      weights.data<float>()[2 * t + 1] = 0.0f;
    }
  };
  Floats logits = {3, 0, 0, 0, 1, 0, 0, 0};
  const Tensor ids = Tensor::zeros({2, 2}, DType::kI32);
  const Tensor weights = Tensor::zeros({2, 2}, DType::kF32);
  Router(config, {}).select(Tensor::borrow(logits.data(), {2, 4}, DType::kF32), ids, weights, {});
  EXPECT_EQ(Ids(ids.data<int32_t>(), ids.data<int32_t>() + 4), (Ids{3, -1, 1, -1}));
  EXPECT_EQ(weights.data<float>()[2], 0.125f);
}

}  // namespace
}  // namespace moebius
