// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Every instruction set's weighted sum gives the bits of the portable one.
#include "layer/cpu/row_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/cpu_features.h"
#include "tests/layer/tensors.h"

namespace moebius::row_sums {
namespace {

using testing::random_tensor;

struct Implementation {
  const char* name;
  bool runs_here;
  WeightedSum sum;
};

std::vector<Implementation> implementations() {
  const CpuFeatures& cpu = cpu_features();
  std::vector<Implementation> all;
#if defined(__x86_64__)
  all.push_back({"avx2", cpu.avx2, weighted_sum_avx2});
  all.push_back({"avx512", cpu.avx512, weighted_sum_avx512});
#endif
  return all;
}

class RowSums : public ::testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    if (!GetParam().runs_here) {
      GTEST_SKIP() << "this processor has no " << GetParam().name;
    }
  }

  // rows [K, n].
  void expect_like_portable(Type type, const Tensor& rows, const std::vector<float>& weights) {
    const int64_t n = rows.dim(1);
    std::vector<Term> terms;
    for (size_t k = 0; k < weights.size(); ++k) {
      terms.push_back({rows[static_cast<int64_t>(k)].raw(), weights[k]});
    }
    for (const bool sums_in_type : {false, true}) {
      // An element behind the end must stay as it is.
      const Tensor expected = Tensor::zeros({n + 1}, rows.dtype());
      const Tensor actual = Tensor::zeros({n + 1}, rows.dtype());
      const auto num_terms = static_cast<int64_t>(terms.size());
      weighted_sum_portable(type, terms.data(), num_terms, sums_in_type, n, expected.raw());
      GetParam().sum(type, terms.data(), num_terms, sums_in_type, n, actual.raw());
      for (int64_t i = 0; i <= n; ++i) {
        const float a = get_float(actual, i), e = get_float(expected, i);
        ASSERT_TRUE((std::isnan(a) && std::isnan(e)) ||
                    (a == e && std::signbit(a) == std::signbit(e)))
            << name(rows.dtype()) << " n " << n << " terms " << num_terms << " sums in type "
            << sums_in_type << " element " << i << ": " << a << ", portable has " << e;
      }
    }
  }
};

const std::pair<Type, DType> kTypes[] = {
    {Type::kF32, DType::kF32}, {Type::kBF16, DType::kBF16}, {Type::kF16, DType::kF16}};

TEST_P(RowSums, AreThePortableOnes) {
  for (const auto& [type, dtype] : kTypes) {
    for (const int64_t n : {1, 7, 8, 15, 16, 31, 32, 33, 64, 95, 129, 2048}) {
      for (const int64_t num_terms : {0, 1, 2, 8, 9}) {
        const Tensor rows = random_tensor({std::max<int64_t>(1, num_terms), n}, dtype, 1);
        std::vector<float> weights;
        for (int64_t k = 0; k < num_terms; ++k) {
          weights.push_back(0.37f * static_cast<float>(k) - 1.1f);
        }
        expect_like_portable(type, rows, weights);
      }
    }
  }
}

TEST_P(RowSums, OfExtremeValuesAreThePortableOnes) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  float odd_nan = nan;  // all bits set: rounding by addition would make a number of it
  std::memset(&odd_nan, 0xff, sizeof(odd_nan));
  const std::vector<float> values = {0.0f, -0.0f,    1e-40f,  -3e-39f, 6e-8f, -6e-5f,
                                     1.0f, 65504.0f, -7e4f,   3e38f,   inf,   -inf,
                                     nan,  -nan,     odd_nan, 256.0f,  257.0f};
  for (const auto& [type, dtype] : kTypes) {
    const auto n = static_cast<int64_t>(values.size());
    const Tensor rows = Tensor::empty({2, 3 * n}, dtype);
    for (int64_t i = 0; i < 3 * n; ++i) {
      set_float(rows, i, values[static_cast<size_t>(i % n)]);
      set_float(rows, 3 * n + i, values[static_cast<size_t>((i + i / n + 1) % n)]);
    }
    for (const float weight : {1.0f, -0.5f, 1e-3f, 3e38f, 0.0f, inf, nan, odd_nan}) {
      expect_like_portable(type, rows, {1.0f, weight});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, RowSums, ::testing::ValuesIn(implementations()), [](const auto& isa) {
  return std::string(isa.param.name);
});

}  // namespace
}  // namespace moebius::row_sums
