// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The portable sum must be what the header says, and that of every instruction set must equal it.
#include "core/row_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/cpu_features.h"
#include "moebius/tensor.h"

namespace moebius {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr SumRounding kRoundings[] = {SumRounding::kSum, SumRounding::kProducts,
                                      SumRounding::kProductsAndSums};

struct Implementation {
  const char* name;
  bool runs_here;
  void (*sum)(const RowSum&);
};

std::vector<Implementation> implementations() {
  std::vector<Implementation> all = {{"portable", true, sum_rows_portable},
                                     {"best", true, sum_rows}};
#if defined(__x86_64__)
  all.push_back({"avx2", cpu_features().avx2, sum_rows_avx2});
  all.push_back({"avx512", cpu_features().avx512, sum_rows_avx512});
#endif
  return all;
}

float rounded(DType dtype, float x) {
  const Tensor one = Tensor::empty({1}, dtype);
  set_float(one, 0, x);
  return get_float(one, 0);
}

// The sum for element i, computed as the header defines it.
float expected_sum(const Tensor& rows,
                   const std::vector<float>& weights,
                   SumRounding rounding,
                   int64_t i) {
  const DType dtype = rows.dtype();
  float sum = 0.0f;
  for (size_t k = 0; k < weights.size(); ++k) {
    float product = get_float(rows, static_cast<int64_t>(k) * rows.dim(1) + i) * weights[k];
    if (rounding != SumRounding::kSum) {
      product = rounded(dtype, product);
    }
    sum += product;
    if (rounding == SumRounding::kProductsAndSums) {
      sum = rounded(dtype, sum);
    }
  }
  return rounded(dtype, sum);
}

class RowSums : public ::testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    if (!GetParam().runs_here) {
      GTEST_SKIP() << "this processor has no " << GetParam().name;
    }
  }

  // `rows` is [K, n]; results start `at` elements after an aligned address.
  void expect_sums(const Tensor& rows, const std::vector<float>& weights, int64_t at = 0) {
    const int64_t n = rows.dim(1);
    std::vector<SumTerm> terms;
    for (size_t k = 0; k < weights.size(); ++k) {
      terms.push_back({rows[static_cast<int64_t>(k)].raw(), weights[k]});
    }
    for (const SumRounding rounding : kRoundings) {
      std::vector<float> expected;
      for (int64_t i = 0; i < n; ++i) {
        expected.push_back(expected_sum(rows, weights, rounding, i));
      }
      expected.push_back(0.0f);  // the element after the end must stay unchanged
      for (const bool past_caches : {false, true}) {
        const Tensor out = Tensor::zeros({at + n + 1}, rows.dtype());
        GetParam().sum({.dtype = rows.dtype(),
                        .rounding = rounding,
                        .terms = terms.data(),
                        .num_terms = static_cast<int64_t>(terms.size()),
                        .n = n,
                        .out = out.bytes() + row_bytes(rows.dtype(), at),
                        .past_caches = past_caches});
        for (int64_t i = 0; i <= n; ++i) {
          const float a = get_float(out, at + i), e = expected[static_cast<size_t>(i)];
          ASSERT_TRUE((std::isnan(a) && std::isnan(e)) ||
                      (a == e && std::signbit(a) == std::signbit(e)))
              << name(rows.dtype()) << " n " << n << " terms " << terms.size() << " rounding "
              << static_cast<int>(rounding) << " past caches " << past_caches << " at " << at
              << " element " << i << ": " << a << ", expected " << e;
        }
      }
    }
  }
};

TEST_P(RowSums, AreWhatTheHeaderSays) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const DType dtype : kTypes) {
    for (const int64_t n : {0, 1, 7, 8, 15, 16, 31, 32, 33, 64, 95, 129, 545, 1100}) {
      for (const int64_t num_terms : {0, 1, 2, 9}) {
        const Tensor rows = Tensor::zeros({std::max<int64_t>(1, num_terms), n}, dtype);
        for (int64_t i = 0; i < rows.numel(); ++i) {
          set_float(rows, i, normal(random) * (i % 7 == 0 ? 1e-3f : 1.0f));
        }
        std::vector<float> weights;
        for (int64_t k = 0; k < num_terms; ++k) {
          weights.push_back(k % 3 == 2 ? 1.0f : 0.37f * static_cast<float>(k) - 1.1f);
        }
        for (const int64_t at : {0, 1}) {
          expect_sums(rows, weights, at);
        }
      }
    }
  }
}

TEST_P(RowSums, OfExtremeValuesAreWhatTheHeaderSays) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  float odd_nan = nan;  // with all bits set, rounding by addition would give a number
  std::memset(&odd_nan, 0xff, sizeof(odd_nan));
  const std::vector<float> values = {0.0f, -0.0f,    1e-40f,  -3e-39f, 6e-8f, -6e-5f,
                                     1.0f, 65504.0f, -7e4f,   3e38f,   inf,   -inf,
                                     nan,  -nan,     odd_nan, 256.0f,  257.0f};
  for (const DType dtype : kTypes) {
    const auto n = static_cast<int64_t>(values.size());
    const Tensor rows = Tensor::empty({2, 3 * n}, dtype);
    for (int64_t i = 0; i < 3 * n; ++i) {
      set_float(rows, i, values[static_cast<size_t>(i % n)]);
      set_float(rows, 3 * n + i, values[static_cast<size_t>((i + i / n + 1) % n)]);
    }
    for (const float weight : {1.0f, -0.5f, 1e-3f, 3e38f, 0.0f, inf, nan, odd_nan}) {
      expect_sums(rows, {1.0f, weight});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, RowSums, ::testing::ValuesIn(implementations()), [](const auto& isa) {
  return std::string(isa.param.name);
});

}  // namespace
}  // namespace moebius
