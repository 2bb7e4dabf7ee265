// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// quant/cuda/elements.cuh divides 16-bit elements by a scale and relies on this: one step towards
// the quotient is enough for its e4m3 code.  A code depends on the side of the middle between two
// codes on which a quotient is.  In units of half a code's step, a middle is an odd integer below
// 32.  Signs and powers of two change nothing.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace moebius::quant {
namespace {

constexpr int kSignificantBits = 11;  // of f16; bf16 has 8

// Rounds to kSignificantBits bits, halves to even.
float narrowed(float value) {
  constexpr int kDropped = 24 - kSignificantBits;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = bits + (1u << (kDropped - 1)) - 1 + (bits >> kDropped & 1u);
  return std::bit_cast<float>(rounded >> kDropped << kDropped);
}

int side(float quotient, float middle) {
  return quotient < middle ? -1 : quotient > middle ? 1 : 0;
}

TEST(NarrowQuotientTest, OneStepKeepsTheSideOfEveryMiddle) {
  int64_t near = 0;
  int64_t estimates_wrong = 0;
  int64_t wrong = 0;
  for (uint32_t mantissa = 0; mantissa < 1u << 23; ++mantissa) {
    const float f = std::bit_cast<float>(0x3f800000u | mantissa);
    const float reciprocal = 1.0f / f;
    for (float middle = 1.0f; middle < 32.0f; middle += 2.0f) {
      // Only this element can have a quotient within a few units of f32 of the middle.
      const double product = static_cast<double>(middle) * static_cast<double>(f);
      const float x = narrowed(static_cast<float>(product));
      if (std::abs(static_cast<double>(x) - product) > product * 0x1p-19) {
        continue;
      }
      ++near;
      const float estimate = x * reciprocal;
      const float step = std::fma(std::fma(estimate, f, -x), -reciprocal, estimate);
      const int expected = side(x / f, middle);
      estimates_wrong += side(estimate, middle) != expected ? 1 : 0;
      wrong += side(step, middle) != expected ? 1 : 0;
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << near;
  // This shows that the step is needed and that the test reaches the middles.
  EXPECT_GT(estimates_wrong, 0) << "of " << near;
}

}  // namespace
}  // namespace moebius::quant
