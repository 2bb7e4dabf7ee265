// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Logfmt rows against their definition in low_latency.h, computed here in f64.
#include "comm/low_latency/logfmt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace moebius::logfmt {
namespace {

constexpr int64_t kHidden = 5 * kGroup;

std::vector<float> coded_and_decoded(const std::vector<float>& row) {
  std::vector<std::byte> coded(static_cast<size_t>(row_bytes(kHidden)));
  encode_row(DType::kF32, reinterpret_cast<const std::byte*>(row.data()), kHidden, coded.data());
  std::vector<float> decoded(row.size());
  decode_row(coded.data(), kHidden, decoded.data());
  return decoded;
}

TEST(LogFmt, ElementsAreTheNearestOnTheScaleOfTheirGroup) {
  std::mt19937 random(1);
  // Spreads of one power of two and of more than the scale spans.
  for (const double spread : {0.0, 0.5, 8.0, 30.0, 60.0}) {
    std::vector<float> row(kHidden);
    for (float& x : row) {
      const double exponent = std::uniform_real_distribution<>(-spread, spread)(random);
      x = static_cast<float>(std::exp2(exponent) * (random() % 2 == 0 ? 1.0 : -1.0));
      x = random() % 16 == 0 ? 0.0f : x;
    }
    const std::vector<float> got = coded_and_decoded(row);
    for (size_t g = 0; g < kHidden / kGroup; ++g) {
      double log_max = -1e9;
      double log_min = 1e9;
      for (size_t i = g * kGroup; i < (g + 1) * kGroup; ++i) {
        if (row[i] != 0.0f) {
          log_max = std::max(log_max, std::log2(std::abs(static_cast<double>(row[i]))));
          log_min = std::min(log_min, std::log2(std::abs(static_cast<double>(row[i]))));
        }
      }
      log_min = std::max(log_min, log_max - 32);
      const double step = (log_max - log_min) / 510;
      for (size_t i = g * kGroup; i < (g + 1) * kGroup; ++i) {
        if (row[i] == 0.0f) {
          EXPECT_EQ(got[i], 0.0f);
          continue;
        }
        ASSERT_EQ(std::signbit(got[i]), std::signbit(row[i]));
        const double log_x = std::max(std::log2(std::abs(static_cast<double>(row[i]))), log_min);
        const double log_y = std::log2(std::abs(static_cast<double>(got[i])));
        ASSERT_LE(std::abs(log_y - log_x), step / 2 + 3e-5) << "element " << i << ": " << row[i];
        // On the scale, and not between two levels.
        if (step > 1e-3) {
          const double level = (log_y - log_min) / step;
          ASSERT_NEAR(level, std::round(level), 3e-5 / step + 1e-3);
        }
      }
    }
  }
}

TEST(LogFmt, CodesAreTenBitsEachInOrder) {
  std::mt19937 random(2);
  std::vector<float> row(kHidden);
  uint32_t max_bits = 0;
  uint32_t min_bits = ~0u;
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = std::normal_distribution<float>()(random);
    if (i < kGroup) {
      const uint32_t bits = std::bit_cast<uint32_t>(std::abs(row[i]));
      max_bits = std::max(max_bits, bits);
      min_bits = std::min(min_bits, bits);
    }
  }
  std::vector<std::byte> coded(static_cast<size_t>(row_bytes(kHidden)));
  EXPECT_EQ(coded.size(), 5u * (160 + 8));
  encode_row(DType::kF32, reinterpret_cast<const std::byte*>(row.data()), kHidden, coded.data());
  const Header header = make_header(max_bits, min_bits);
  for (size_t i = 0; i < kGroup; ++i) {
    uint32_t code = 0;
    for (size_t bit = 0; bit < 10; ++bit) {
      const size_t at = 10 * i + bit;
      code |= (static_cast<uint32_t>(coded[at / 8]) >> at % 8 & 1) << bit;
    }
    EXPECT_EQ(code, encode(row[i], header)) << i;
  }
}

TEST(LogFmt, WhatIsNotFiniteMakesItsGroupNaN) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> row(kHidden, 1.5f);
    row[kGroup + 3] = bad;
    row[2 * kGroup] = std::numeric_limits<float>::max();
    row[3 * kGroup] = std::numeric_limits<float>::denorm_min();
    const std::vector<float> got = coded_and_decoded(row);
    for (size_t i = 0; i < row.size(); ++i) {
      EXPECT_EQ(std::isnan(got[i]), i / kGroup == 1) << i;
    }
    EXPECT_NEAR(got[2 * kGroup] / std::numeric_limits<float>::max(), 1.0f, 1e-3f);
    EXPECT_NEAR(got[2 * kGroup + 1], std::numeric_limits<float>::max() * 0x1p-32f,
                std::numeric_limits<float>::max() * 0x1p-38f);  // too far below the largest
    EXPECT_EQ(got[3 * kGroup], 0.0f);
    EXPECT_NEAR(got[0], 1.5f, 1e-4f);
  }
}

}  // namespace
}  // namespace moebius::logfmt
