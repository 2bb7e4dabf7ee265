// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Compares logits() with f64, and tests the exponential that scoring uses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "moebius/router.h"
#include "router/exp.h"
#include "tests/router/random_inputs.h"

namespace moebius {
namespace {

TEST(RouterLogits, AreDotProductsPlusBias) {
  std::vector<float> hidden = {1, 2, 3, -1, 0, 4}, gate = {1, 0, 0, 1, 1, 1, -2, 0, 0.5f, 0, 2, 0};
  std::vector<float> bias = {10, 20, 30, 40}, out(8);
  const Router router({.num_experts = 4}, {.gate = Tensor::borrow(gate.data(), {4, 3}, DType::kF32),
                                           .bias = Tensor::borrow(bias.data(), {4}, DType::kF32)});
  router.logits(Tensor::borrow(hidden.data(), {2, 3}, DType::kF32),
                Tensor::borrow(out.data(), {2, 4}, DType::kF32), {});
  EXPECT_EQ(out, (std::vector<float>{11, 26, 29.5f, 44, 9, 23, 34, 40}));
}

TEST(RouterLogits, StayCloseToDoublePrecisionOverALongSum) {
  constexpr int64_t kHidden = 7168, kExperts = 32, kTokens = 7;
  const Tensor hidden = testing::random_tensor({kTokens, kHidden}, DType::kBF16, 1);
  const Tensor gate = testing::random_tensor({kExperts, kHidden}, DType::kBF16, 2);
  const Router router({.num_experts = kExperts}, {.gate = gate});
  const Tensor out = Tensor::empty({kTokens, kExperts}, DType::kF32);
  router.logits(hidden, out, {});
  // The bound is half a unit in the last place of the sum of magnitudes, 2^-24.
  EXPECT_LT(testing::worst_error(out, hidden, gate), 6e-8);
}

TEST(RouterExp, IsWithinOneAndAHalfUnitsInTheLastPlace) {
  double worst = 0.0;
  for (float x = -0.0f; x > -87.3f; x = std::min(x * 1.00003f, x - 1e-8f)) {
    const double exact = std::exp(static_cast<double>(x));
    const auto rounded = static_cast<float>(exact);
    const double unit = static_cast<double>(
        std::nextafter(rounded, std::numeric_limits<float>::infinity()) - rounded);
    worst = std::max(worst, std::fabs(router::exp_nonpositive(x) - exact) / unit);
  }
  EXPECT_LT(worst, 1.5);
}

TEST(RouterExp, EndsInSubnormalsZeroAndNaN) {
  EXPECT_EQ(router::exp_nonpositive(0.0f), 1.0f);
  EXPECT_EQ(router::exp_nonpositive(-0.0f), 1.0f);
  for (const float x : {-88.0f, -95.5f, -103.0f, -103.9f, -104.0f, -1000.0f}) {
    EXPECT_NEAR(router::exp_nonpositive(x), std::exp(static_cast<double>(x)), 1.5e-45) << x;
  }
  EXPECT_EQ(router::exp_nonpositive(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_TRUE(std::isnan(router::exp_nonpositive(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace moebius
