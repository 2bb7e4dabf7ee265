// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Every way in which BlockGemm computes.  oneDNN's i8 runs on every processor, exactly as long as
// pairs of products stay below 2^15; its bf16 only where the processor has it.
#include "experts/cpu/block_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "problems/expert_problem.h"

namespace moebius::cpu {
namespace {

struct Ways {
  DType operand;
  DType weight;
  bool use_onednn;
};

class BlockGemmWays : public testing::TestWithParam<Ways> {};

// i8 codes within +-60, so that no kernel saturates.
Tensor matrix(ExpertProblemMaker& maker, const Shape& shape, DType dtype) {
  const Tensor values = maker.normal(shape, DType::kF32, dtype == DType::kI8 ? 15.0f : 1.0f);
  return convert(values, dtype);
}

std::vector<float> values_of(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = get_float(tensor, static_cast<int64_t>(i));
  }
  return values;
}

TEST_P(BlockGemmWays, MultipliesAnyNumberOfRows) {
  const auto& [operand, weight, use_onednn] = GetParam();
#ifdef MOEBIUS_HAVE_ONEDNN
  if (use_onednn && operand == DType::kBF16 && !onednn_has_native(operand)) {
    GTEST_SKIP() << "oneDNN has no bf16 matmul for this processor";
  }
#endif
  ExpertProblemMaker maker(3);
  const int64_t k = 76;
  const int64_t n = 2 * 50;  // gate and up: ranges of 32 and of 18 rows
  const int64_t max_columns = 64;
  const Tensor w = matrix(maker, {2, n, k}, weight);
  const BlockGemm gemm({.weight = w,
                        .desc = {},
                        .a_gscale = {},
                        .gate_rows = n / 2,
                        .operand = operand,
                        .use_onednn = use_onednn,
                        .range_rows = 32,
                        .range_total = 50,
                        .max_columns = max_columns});
  const std::vector<float> w_values = values_of(w[1]);
  const Tensor scratch = Tensor::empty({gemm.scratch_bytes()}, DType::kU8);
  for (const int64_t m : {1, 3, 4, 5, 16, 17, 63, 65, 100, 341}) {
    SCOPED_TRACE(m);
    const Tensor a = matrix(maker, {m, k}, operand);
    const std::vector<float> a_values = values_of(a);
    for (const bool scattered : {false, true}) {
      const Tensor source = matrix(maker, {2 * m, k}, operand);
      std::vector<const void*> rows;
      for (int64_t i = 0; i < m; ++i) {
        const Tensor row = source[scattered ? 2 * i : i];
        std::memcpy(row.raw(), a[i].raw(), static_cast<size_t>(row.nbytes()));
        rows.push_back(row.raw());
      }
      std::memset(scratch.raw(), 0xff, static_cast<size_t>(scratch.nbytes()));
      const int64_t first = m > gemm.most_dot_rows() || m % 2 == 0 ? 32 : 40;
      const int64_t count = 50 - first;
      const WeightRange ranges[2] = {{first, count, 0}, {50 + first, count, 32}};
      const Tensor c =
          Tensor::zeros({m + 16, max_columns}, operand == DType::kI8 ? DType::kI32 : DType::kF32);
      gemm.run(1, ranges, rows.data(), m, c.raw(), scratch.bytes());
      for (int64_t i = 0; i < m; ++i) {
        for (const WeightRange& range : ranges) {
          for (int64_t j = 0; j < count; ++j) {
            double expected = 0;
            for (int64_t l = 0; l < k; ++l) {
              expected +=
                  static_cast<double>(a_values[static_cast<size_t>(i * k + l)]) *
                  static_cast<double>(w_values[static_cast<size_t>((range.first + j) * k + l)]);
            }
            const double actual = get_float(c, i * max_columns + range.column + j);
            ASSERT_NEAR(actual, expected, operand == DType::kI8 ? 0 : 1e-4) << i << " " << j;
          }
        }
      }
    }
  }
}

std::vector<Ways> ways() {
  std::vector<Ways> list = {{DType::kF32, DType::kF32, false},
                            {DType::kF32, DType::kBF16, false},
                            {DType::kF32, DType::kF16, false},
                            {DType::kBF16, DType::kBF16, false},
                            {DType::kI8, DType::kI8, false}};
#ifdef MOEBIUS_HAVE_ONEDNN
  const size_t n = list.size();
  for (size_t i = 0; i < n; ++i) {
    list.push_back(list[i]);
    list.back().use_onednn = true;
  }
#endif
  return list;
}

INSTANTIATE_TEST_SUITE_P(All, BlockGemmWays, testing::ValuesIn(ways()), [](const auto& way) {
  return std::string(name(way.param.operand)) + "_" + std::string(name(way.param.weight)) +
         (way.param.use_onednn ? "_onednn" : "");
});

}  // namespace
}  // namespace moebius::cpu
