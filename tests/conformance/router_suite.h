// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A router implementation must give the bits of `ref` for any number of threads.
// The parameter is a name in the list of src/router/impls.cc.  Operands are made on the CPU and
// moved to the implementation's device and back.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "moebius/error.h"
#include "tests/conformance/router_runs.h"
#include "tests/router/random_inputs.h"

namespace moebius::testing {

class RouterConformance : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const router::ImplEntry& entry = entry_of(GetParam());
    if (entry.device == DeviceType::kCuda && cuda_device_count() == 0) {
      GTEST_SKIP() << "skipped: no GPU";
    }
    try {
      make_forced(GetParam(), {.num_experts = 8});
    } catch (const Unsupported& refusal) {
      GTEST_SKIP() << refusal.what();
    }
  }

  void expect_selects_like_ref(const RouterConfig& config,
                               const RouterWeights& weights,
                               const Tensor& logits,
                               int num_threads = 2) {
    const Router router = make_forced(GetParam(), config, weights);
    const Selection expected = run_select(make_forced("ref", config, weights), logits, 1);
    const Selection actual = run_select(router, logits, num_threads);
    EXPECT_SAME_BITS(actual.all_ids, expected.all_ids);
    EXPECT_SAME_BITS(actual.all_weights, expected.all_weights);
  }

  // Passes without a check when the implementation does not take the gate.
  void expect_logits_like_ref(const RouterWeights& weights,
                              const Tensor& hidden,
                              std::initializer_list<int> thread_counts) {
    const RouterConfig config = {.num_experts = weights.gate.dim(0)};
    if (!takes(GetParam(), config, weights)) {
      return;
    }
    const Tensor expected = run_logits(make_forced("ref", config, weights), hidden, 1);
    const Router router = make_forced(GetParam(), config, weights);
    for (const int num_threads : thread_counts) {
      EXPECT_SAME_BITS(run_logits(router, hidden, num_threads), expected);
    }
  }
};

inline const std::vector<int64_t> kExpertCounts = {8, 12, 16, 64, 128, 256};
inline const std::vector<int64_t> kTokenCounts = {0, 1, 33, 64, 513};

inline std::vector<int64_t> topk_values(int64_t num_experts) {
  std::vector<int64_t> values = {1, 2, 3, 4, 5, 6, 7, 8};
  if (num_experts > 8) {
    values.push_back(num_experts);
  }
  return values;
}

struct Method {
  const char* name;
  Scoring scoring;
  bool score_after_topk, renormalize, has_correction_bias;
  float routed_scaling_factor;
};

inline const std::vector<Method> kMethods = {
    {"softmax", Scoring::kSoftmax, false, false, false, 1.0f},
    {"softmax_renormalized", Scoring::kSoftmax, false, true, false, 1.0f},
    {"topk_softmax", Scoring::kSoftmax, true, false, false, 1.0f},
    {"topk_softmax_bias", Scoring::kSoftmax, true, false, true, 1.0f},
    {"softmax_bias", Scoring::kSoftmax, false, true, true, 1.5f},
    {"sigmoid", Scoring::kSigmoid, false, false, false, 1.0f},
    {"topk_sigmoid", Scoring::kSigmoid, true, false, false, 1.0f},
    {"sigmoid_bias", Scoring::kSigmoid, false, true, true, 2.5f},
    {"sqrt_softplus", Scoring::kSqrtSoftplus, false, true, true, 2.5f},
};

inline RouterConfig make_config(const Method& method, int64_t num_experts, int64_t topk) {
  RouterConfig config;
  config.num_experts = num_experts;
  config.topk = topk;
  config.scoring = method.scoring;
  config.score_after_topk = method.score_after_topk;
  config.renormalize = method.renormalize;
  config.routed_scaling_factor = method.routed_scaling_factor;
  return config;
}

inline RouterWeights make_weights(const Method& method, int64_t num_experts) {
  RouterWeights weights;
  if (method.has_correction_bias) {
    weights.correction_bias = random_tensor({num_experts}, DType::kBF16, 5, 0.1f);
  }
  return weights;
}

TEST_P(RouterConformance, TheForcedNameIsWhatRuns) {
  EXPECT_EQ(make_forced(GetParam(), {.num_experts = 8}).implementation(), GetParam());
}

TEST_P(RouterConformance, SelectsLikeRef) {
  for (const Method& method : kMethods) {
    for (const int64_t num_experts : kExpertCounts) {
      const Tensor logits = random_logits(513, num_experts, 11);
      for (const int64_t topk : topk_values(num_experts)) {
        for (const int64_t num_tokens : kTokenCounts) {
          if (num_tokens != 33 && topk != 8) {
            continue;  // every K at one token count, every token count at one K
          }
          SCOPED_TRACE(std::string(method.name) + " E " + std::to_string(num_experts) + " K " +
                       std::to_string(topk) + " T " + std::to_string(num_tokens));
          expect_selects_like_ref(make_config(method, num_experts, topk),
                                  make_weights(method, num_experts), logits.slice(0, num_tokens),
                                  num_tokens > 64 ? 2 : 1);
        }
      }
    }
  }
}

// Tests numbers around a warp's 32 lanes and their multiples, odd numbers, and groups of odd size.
TEST_P(RouterConformance, SelectsLikeRefForAnyNumberOfExperts) {
  for (const int64_t num_experts : {1, 2, 31, 32, 33, 63, 65, 129, 257, 513, 999, 1024}) {
    for (const Method& method : {kMethods[0], kMethods[4], kMethods[7], kMethods[8]}) {
      for (const int64_t topk : {int64_t{1}, std::min<int64_t>(num_experts, 40)}) {
        for (const int64_t num_groups : {1, 3}) {
          if (num_experts % num_groups != 0) {
            continue;
          }
          RouterConfig config = make_config(method, num_experts, topk);
          config.num_groups = num_groups;
          config.topk_groups = num_groups == 1 ? 1 : 2;
          config.topk = std::min(topk, config.topk_groups * (num_experts / num_groups));
          SCOPED_TRACE(std::string(method.name) + " E " + std::to_string(num_experts) + " K " +
                       std::to_string(config.topk) + " groups " + std::to_string(num_groups));
          expect_selects_like_ref(config, make_weights(method, num_experts),
                                  random_logits(5, num_experts, 17));
        }
      }
    }
  }
}

TEST_P(RouterConformance, SelectsLikeRefWithinGroups) {
  struct Groups {
    int64_t num_experts, num_groups, topk_groups, topk;
  };
  for (const Groups& g : {Groups{16, 8, 2, 4},
                          {16, 4, 2, 4},
                          {12, 3, 1, 4},
                          {64, 64, 8, 8},
                          {160, 8, 3, 6},
                          {256, 8, 4, 8},
                          {256, 8, 8, 8},
                          {60, 4, 2, 20},
                          {16, 16, 4, 4}}) {
    for (const Method& method : kMethods) {
      SCOPED_TRACE(std::string(method.name) + " E " + std::to_string(g.num_experts) + " groups " +
                   std::to_string(g.num_groups));
      RouterConfig config = make_config(method, g.num_experts, g.topk);
      config.num_groups = g.num_groups;
      config.topk_groups = g.topk_groups;
      expect_selects_like_ref(config, make_weights(method, g.num_experts),
                              random_logits(64, g.num_experts, 3));
    }
  }
}

TEST_P(RouterConformance, SelectsLikeRefWhereLogitsAreNotFinite) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr int64_t kExperts = 24;
  for (const int64_t num_groups : {1, 4}) {
    for (const Method& method : kMethods) {
      for (const float value : {kNaN, -kNaN, kInf, -kInf, 3e38f, -3e38f}) {
        // Row t has the value in t places that are spread out; the last row has it everywhere.
        Tensor logits = random_logits(kExperts + 1, kExperts, 9);
        for (int64_t t = 0; t <= kExperts; ++t) {
          for (int64_t i = 0; i < t; ++i) {
            logits.data<float>()[t * kExperts + i * 7 % kExperts] = value;
          }
        }
        SCOPED_TRACE(std::string(method.name) + " groups " + std::to_string(num_groups) +
                     " value " + std::to_string(value));
        RouterConfig config = make_config(method, kExperts, 6);
        config.num_groups = num_groups;
        config.topk_groups = num_groups == 1 ? 1 : 2;
        expect_selects_like_ref(config, make_weights(method, kExperts), logits);
      }
    }
  }
}

TEST_P(RouterConformance, TheSparseMixerSelectsLikeRef) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t num_experts : {1, 2, 16, 33, 64, 257, 1024}) {
    for (const int64_t topk : {1, 2, 5}) {
      for (const bool renormalize : {false, true}) {
        RouterConfig config;
        config.num_experts = num_experts;
        config.topk = std::min(topk, num_experts);
        config.scoring = Scoring::kSparseMixer;
        config.mixer_epsilon = 0.1f;
        config.renormalize = renormalize;
        Tensor logits = random_logits(65, num_experts, 23);
        for (int64_t t = 0; t < 12; ++t) {  // zeros, ties, and what is not finite
          float* row = logits.data<float>() + t * num_experts;
          const float values[] = {0.0f, -0.0f, kNaN, kInf, -kInf, 1.5f};
          row[t * 5 % num_experts] = values[t % 6];
          row[t * 3 % num_experts] = values[t % 6];
        }
        SCOPED_TRACE("E " + std::to_string(num_experts) + " K " + std::to_string(topk));
        expect_selects_like_ref(config, {}, logits);
      }
    }
  }
}

TEST_P(RouterConformance, ScalesOfExpertsAreThoseOfRef) {
  for (const Method& method : kMethods) {
    for (const int64_t num_experts : {8, 60, 256}) {
      RouterWeights weights = make_weights(method, num_experts);
      weights.expert_scale = random_tensor({num_experts}, DType::kBF16, 6);
      SCOPED_TRACE(std::string(method.name) + " E " + std::to_string(num_experts));
      expect_selects_like_ref(make_config(method, num_experts, 6), weights,
                              random_logits(65, num_experts, 29));
    }
  }
}

TEST_P(RouterConformance, SelectDoesNotDependOnTheNumberOfThreads) {
  const Tensor logits = random_logits(513, 64, 2);
  for (const int num_threads : {1, 3, 8}) {
    expect_selects_like_ref(make_config(kMethods[1], 64, 6), {}, logits, num_threads);
  }
}

// Sizes around those of tiles (6 or 16 tokens and 16 experts; on a GPU 8 and 4, 16 and 8, or 16 and
// 16), blocks (32 or 48 tokens), chains (32) and depth steps (256; on a GPU 4096 or 1024).
inline const std::vector<LogitsProblem> kLogitsProblems = {
    {0, 8, 64},     {1, 8, 64},    {1, 256, 257},  {2, 64, 255},   {3, 17, 256},    {4, 33, 1},
    {5, 128, 300},  {6, 16, 511},  {7, 12, 513},   {33, 80, 40},   {47, 15, 31},    {48, 17, 520},
    {49, 65, 16},   {64, 64, 20},  {513, 9, 20},   {15, 48, 64},   {16, 20, 288},   {17, 272, 96},
    {31, 5, 33},    {32, 31, 63},  {65, 15, 1056}, {81, 33, 1027}, {128, 16, 1024}, {9, 9, 4160},
    {1025, 65, 96}, {1200, 7, 45}, {61, 83, 1096},
};

// On a GPU with 132 SMs the first problem uses tiles of 16 tokens and 16 experts.  The others use
// tiles of 32, 64 or 128 tokens and 64 experts, with depth steps of 256, 128 or 64.
inline const std::vector<LogitsProblem> kManyLogitsProblems = {
    {130, 130, 1096},
    {801, 257, 264},
    {1600, 132, 136},
    {2600, 257, 72},
};

TEST_P(RouterConformance, LogitsAreThoseOfRef) {
  const std::vector<DType> dtypes = {DType::kF32, DType::kF16, DType::kBF16};
  for (const LogitsProblem& p : kLogitsProblems) {
    for (const DType gate_dtype : dtypes) {
      for (const DType hidden_dtype : dtypes) {
        RouterWeights weights;
        weights.gate = random_tensor({p.num_experts, p.hidden}, gate_dtype, 1, 0.1f);
        if (gate_dtype != hidden_dtype) {
          weights.bias = random_tensor({p.num_experts}, gate_dtype, 2);
        }
        const Tensor hidden = random_tensor({p.num_tokens, p.hidden}, hidden_dtype, 3);
        SCOPED_TRACE("T " + std::to_string(p.num_tokens) + " E " + std::to_string(p.num_experts) +
                     " H " + std::to_string(p.hidden) + " gate " + std::string(name(gate_dtype)) +
                     " hidden " + std::string(name(hidden_dtype)));
        gate_dtype == hidden_dtype ? expect_logits_like_ref(weights, hidden, {1, 5})
                                   : expect_logits_like_ref(weights, hidden, {1});
      }
    }
  }
}

TEST_P(RouterConformance, LogitsOfManyTokensAreThoseOfRef) {
  for (const LogitsProblem& p : kManyLogitsProblems) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      RouterWeights weights;
      weights.gate = random_tensor({p.num_experts, p.hidden}, dtype, 1, 0.1f);
      weights.bias = random_tensor({p.num_experts}, dtype, 2);
      const Tensor hidden = random_tensor({p.num_tokens, p.hidden}, dtype, 3);
      SCOPED_TRACE("T " + std::to_string(p.num_tokens) + " gate " + std::string(name(dtype)));
      expect_logits_like_ref(weights, hidden, {2});
    }
  }
}

TEST_P(RouterConformance, LogitsOfExtremeValuesAreThoseOfRef) {
  // The hidden states have subnormals, overflow, infinities and NaN; the gate has finite values
  // only.
  constexpr int64_t kHidden = 70;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    RouterWeights weights;
    weights.gate = random_tensor({20, kHidden}, dtype, 1);
    set_float(weights.gate, 5, 1e-40f);
    set_float(weights.gate, kHidden + 6, 6e-8f);
    const float large = dtype == DType::kF16 ? 65504.0f : 3e38f;
    set_float(weights.gate, 2 * kHidden + 7, large);
    set_float(weights.gate, 3 * kHidden + 8, large);
    const Tensor hidden = random_tensor({8, kHidden}, dtype, 2);
    set_float(hidden, 5, 1e-39f);
    set_float(hidden, kHidden + 6, -6e-8f);
    set_float(hidden, 2 * kHidden + 7, 0.0f);
    set_float(hidden, 3 * kHidden + 8, -3e38f);
    set_float(hidden, 4 * kHidden + 9, std::numeric_limits<float>::quiet_NaN());
    set_float(hidden, 5 * kHidden + 7, std::numeric_limits<float>::infinity());
    expect_logits_like_ref(weights, hidden, {2});
  }
}

// A result that equals the smallest normal number only because exponents end there counts as 0.
TEST_P(RouterConformance, LogitsAtTheEndOfTheNormalNumbersAreThoseOfRef) {
  constexpr float kLeast = std::numeric_limits<float>::min();
  constexpr float kBelow1 = 1 - 0x1p-24f;
  const Tensor hidden = Tensor::zeros({6, 3}, DType::kF32);
  RouterWeights weights;
  weights.gate = Tensor::zeros({1, 3}, DType::kF32);
  weights.gate.data<float>()[0] = weights.gate.data<float>()[2] = kLeast;
  const float rows[6][3] = {
      {kBelow1, 0, 0}, {-kBelow1, 0, 0},         {1 - 0x1p-23f, 0, 0},
      {1, 0, 0},       {1, 0, -0x1.000002p-25f}, {1, 0, -0x1p-25f},
  };
  std::copy_n(&rows[0][0], 18, hidden.data<float>());
  expect_logits_like_ref(weights, hidden, {1});
  const Tensor expected = run_logits(make_forced("ref", {.num_experts = 1}, weights), hidden, 1);
  const auto* logits = expected.data<float>();
  EXPECT_EQ(std::vector<float>(logits, logits + 6),
            (std::vector<float>{0, 0, 0, kLeast, 0, kLeast}));
}

TEST_P(RouterConformance, ASecondCallOnTheSameRouterGivesTheSame) {
  RouterWeights weights;
  weights.gate = random_tensor({64, 300}, DType::kBF16, 1, 0.1f);
  const Router router = make_forced(GetParam(), make_config(kMethods[0], 64, 6), weights);
  const Tensor small = random_tensor({3, 300}, DType::kBF16, 2);
  const Tensor large = random_tensor({100, 300}, DType::kBF16, 3);
  const Tensor first = run_logits(router, small, 2);
  run_logits(router, large, 2);
  const Tensor again = run_logits(router, small, 2);
  EXPECT_SAME_BITS(again, first);
  EXPECT_SAME_BITS(run_select(router, again.slice(0, 3), 2).all_weights,
                   run_select(router, first.slice(0, 3), 2).all_weights);
}

inline std::vector<std::string> router_impl_names() {
  std::vector<std::string> names;
  for (const auto& entry : router::impls()) {
    names.emplace_back(entry.name);
  }
  return names;
}

}  // namespace moebius::testing
