// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests every set of CPU kernels that this processor can run.
#include "experts/cpu/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/cpu_features.h"
#include "moebius/float_types.h"

namespace moebius::cpu {
namespace {

std::vector<const CpuKernels*> kernel_sets() {
  std::vector<const CpuKernels*> sets = {&portable_kernels()};
#ifdef MOEBIUS_HAVE_AVX2
  if (cpu_features().avx2) {
    sets.push_back(&avx2_kernels());
  }
#endif
  return sets;
}

class Kernels : public testing::TestWithParam<const CpuKernels*> {
 protected:
  float normal() { return distribution_(random_); }
  std::mt19937 random_{4};
  std::normal_distribution<float> distribution_;
};
INSTANTIATE_TEST_SUITE_P(All, Kernels, testing::ValuesIn(kernel_sets()), [](const auto& set) {
  return std::string(set.param->name);
});

constexpr int64_t kRows[] = {1, 2, 3, 4, 7};
constexpr int64_t kDepths[] = {1, 7, 8, 9, 16, 17, 511, 512, 513, 1030};

TEST_P(Kernels, FloatDotProductsDoNotDependOnTheirNeighbours) {
  for (const int64_t k : kDepths) {
    for (const int64_t m : kRows) {
      const int64_t n = 9;
      std::vector<float> a(static_cast<size_t>(m * k));
      std::vector<float> b(static_cast<size_t>(n * k));
      for (float& x : a) {
        x = normal();
      }
      for (float& x : b) {
        x = normal();
      }
      std::vector<const float*> rows;
      for (int64_t i = 0; i < m; ++i) {
        rows.push_back(a.data() + i * k);
      }
      std::vector<float> c(static_cast<size_t>(m * (n + 2)), -1.0f);
      GetParam()->dot_f32({rows.data(), m, b.data(), k, n, k, c.data(), n + 2});
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double expected = 0;
          double magnitude = 0;
          for (int64_t l = 0; l < k; ++l) {
            const double product = static_cast<double>(rows[static_cast<size_t>(i)][l]) *
                                   static_cast<double>(b[static_cast<size_t>(j * k + l)]);
            expected += product;
            magnitude += std::abs(product);
          }
          const float actual = c[static_cast<size_t>(i * (n + 2) + j)];
          EXPECT_NEAR(actual, expected, magnitude * 0x1p-19);
          float alone = 0;
          GetParam()->dot_f32({rows.data() + i, 1, b.data() + j * k, k, 1, k, &alone, 1});
          EXPECT_EQ(std::bit_cast<uint32_t>(alone), std::bit_cast<uint32_t>(actual));
        }
        EXPECT_EQ(c[static_cast<size_t>(i * (n + 2) + n)], -1.0f) << "written past n";
      }
    }
  }
}

TEST_P(Kernels, ConversionsMatchTheFloatTypes) {
  std::vector<uint16_t> codes(65536);
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<uint16_t>(i);
  }
  std::vector<float> wide(codes.size());
  GetParam()->widen(DType::kBF16, codes.data(), wide.data(), 65535);  // ends within a vector
  for (size_t i = 0; i < 65535; ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), static_cast<uint32_t>(i) << 16);
  }
  GetParam()->widen(DType::kF16, codes.data(), wide.data(), 65536);
  for (size_t i = 0; i < codes.size(); ++i) {
    Float16 half;
    half.bits = codes[i];
    const float expected = static_cast<float>(half);
    ASSERT_TRUE(wide[i] == expected || (std::isnan(wide[i]) && std::isnan(expected))) << i;
  }
  std::vector<float> values = {0.0f,
                               -0.0f,
                               1.00390625f,
                               1.01171875f,
                               3.4e38f,
                               1e-41f,
                               65519.0f,
                               65520.0f,
                               6e-8f,
                               2.9e-8f,
                               std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN()};
  for (int i = 0; i < 5000; ++i) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random_())));
  }
  const auto n = static_cast<int64_t>(values.size());
  std::vector<uint16_t> narrow(values.size());
  GetParam()->narrow(DType::kBF16, values.data(), narrow.data(), n);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(narrow[i], BFloat16(values[i]).bits) << values[i];
  }
  GetParam()->narrow(DType::kF16, values.data(), narrow.data(), n);
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) {
      ASSERT_EQ(narrow[i] & 0x7c00, 0x7c00);
      ASSERT_NE(narrow[i] & 0x03ff, 0);
    } else {
      ASSERT_EQ(narrow[i], Float16(values[i]).bits) << values[i];
    }
  }
}

// Every value is tested, at every place of a vector.
TEST_P(Kernels, Bf16TimesAPowerOfTwo) {
  constexpr float kFactor = 0x1p56f;
  constexpr size_t kNumValues = size_t{1} << 16;
  for (const size_t skipped : {0u, 1u, 3u, 7u}) {
    std::vector<uint16_t> values(kNumValues - skipped);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<uint16_t>(i + skipped);
    }
    GetParam()->scale_bf16(values.data(), kFactor, static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      const auto bits = static_cast<uint16_t>(i + skipped);
      const float before = std::bit_cast<float>(uint32_t{bits} << 16);
      const float after = std::bit_cast<float>(uint32_t{values[i]} << 16);
      if (std::isnan(before)) {
        ASSERT_TRUE(std::isnan(after)) << bits;
      } else {
        ASSERT_EQ(after, before * kFactor) << bits;
      }
    }
  }
}

TEST_P(Kernels, SigmoidIsWithinThreeUlp) {
  std::vector<float> z;
  for (float x = -88.7f; x < 89; x += 0.0137f) {
    z.push_back(x);
  }
  const std::vector<float> ones(z.size(), 1.0f);
  std::vector<float> out(z.size());
  GetParam()->mul_sigmoid(ones.data(), z.data(), out.data(), static_cast<int64_t>(z.size()));
  for (size_t i = 0; i < z.size(); ++i) {
    const double exact = 1 / (1 + std::exp(-static_cast<double>(z[i])));
    EXPECT_NEAR(out[i], exact, 3 * 0x1p-23 * exact + std::numeric_limits<float>::denorm_min())
        << z[i];
  }
}

TEST_P(Kernels, SigmoidOfGatesFarBelowZeroIsZero) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> z = {-89.0f, -1e4f, -3e38f, -kInf, kInf, 1e4f};
  std::vector<float> out(z.size());
  GetParam()->mul_sigmoid(z.data(), z.data(), out.data(), static_cast<int64_t>(z.size()));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(out[static_cast<size_t>(i)], 0.0f) << z[static_cast<size_t>(i)];
  }
  EXPECT_TRUE(std::isnan(out[3]));
  EXPECT_EQ(out[4], kInf);
  EXPECT_EQ(out[5], 1e4f);
}

}  // namespace
}  // namespace moebius::cpu
