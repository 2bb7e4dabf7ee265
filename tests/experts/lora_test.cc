// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The adapters of the CPU experts against plain sums, for every operand (bf16 operands exist on
// processors with AVX-512 or AMX only).
#include "experts/cpu/lora.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "problems/expert_problem.h"
#include "problems/gemm_tolerance.h"

namespace moebius::cpu {
namespace {

constexpr int64_t kAdapters = 3;
constexpr int64_t kRank = 5;
constexpr int64_t kColumns = 77;     // k
constexpr int64_t kWeightRows = 24;  // N
constexpr int64_t kRows = 41;
constexpr int64_t kExpert = 1;  // of 2

struct Ways {
  DType operand;
  DType lora;
  Lora::Halves halves;
};

class LoraWays : public testing::TestWithParam<Ways> {};

TEST_P(LoraWays, AddsTheProductOfBothMatrices) {
  const auto& [operand, dtype, halves] = GetParam();
  const int64_t num_halves = halves == Lora::Halves::kOne ? 1 : 2;
  ExpertProblemMaker maker(5);
  const Tensor a = maker.normal({kAdapters, 2, num_halves * kRank, kColumns}, dtype);
  const Tensor b = maker.normal({kAdapters, 2, kWeightRows, kRank}, dtype);
  const Tensor scaling = maker.normal({kAdapters}, DType::kF32);
  const bool codes = operand == DType::kI8;
  const Tensor x =
      convert(maker.normal({kRows, kColumns}, DType::kF32, codes ? 30.0f : 1.0f), operand);
  const Tensor scales = maker.normal({kRows}, DType::kF32);
  const Lora lora(a, b, scaling, halves, operand, kWeightRows);
  ASSERT_EQ(lora.num_columns(), num_halves * kRank);

  std::vector<int32_t> adapters(kRows);
  for (size_t i = 0; i < adapters.size(); ++i) {
    adapters[i] = static_cast<int32_t>(i * 7 % (kAdapters + 1)) - 1;
  }
  std::vector<int32_t> by_adapter(kRows);
  sort_by_adapter(adapters.data(), kRows, by_adapter.data());
  const Tensor u = Tensor::empty({kRows, lora.num_columns()}, DType::kF32);
  std::memset(u.raw(), 0xff, static_cast<size_t>(u.nbytes()));
  const LoraTile tile = {kExpert, kRows, adapters.data(), by_adapter.data(), u.data<float>()};
  const Tensor scratch = Tensor::empty({lora.scratch_bytes()}, DType::kU8);
  const void* rows[kRows];
  for (int64_t i = 0; i < kRows; ++i) {
    rows[i] = x[i].raw();
  }
  for (int64_t column = 0; column < lora.num_columns(); column += 4) {
    lora.shrink(tile, column, std::min<int64_t>(4, lora.num_columns() - column), rows,
                codes ? scales.data<float>() : nullptr, scratch.bytes());
  }
  constexpr int64_t kLdc = kWeightRows + 3;
  const Tensor c = Tensor::zeros({kRows, kLdc}, DType::kF32);
  lora.expand(tile, {0, 12, 0}, c.data<float>(), kLdc, scratch.bytes());
  lora.expand(tile, {12, 12, 13}, c.data<float>(), kLdc, scratch.bytes());

  RelativeError error;
  for (int64_t i = 0; i < kRows; ++i) {
    const int32_t adapter = adapters[static_cast<size_t>(i)];
    for (int64_t n = 0; n < kWeightRows; ++n) {
      const int64_t half = halves == Lora::Halves::kOne           ? 0
                           : halves == Lora::Halves::kInterleaved ? n % 2
                                                                  : n / (kWeightRows / 2);
      double sum = 0;
      for (int64_t j = 0; adapter >= 0 && j < kRank; ++j) {
        double inner = 0;
        const Tensor a_row = a[adapter][kExpert][half * kRank + j];
        for (int64_t k = 0; k < kColumns; ++k) {
          inner +=
              static_cast<double>(get_float(a_row, k)) * static_cast<double>(get_float(x[i], k));
        }
        inner *= codes ? static_cast<double>(get_float(scales, i)) : 1.0;
        sum += inner * static_cast<double>(get_float(b[adapter][kExpert][n], j)) *
               static_cast<double>(get_float(scaling, adapter));
      }
      const float got = get_float(c[i], n < 12 ? n : n + 1);
      error.add(got, static_cast<float>(sum));
      if (adapter < 0) {
        EXPECT_EQ(got, 0.0f) << "row " << i << " has no adapter";
      }
    }
    EXPECT_EQ(get_float(c[i], 12), 0.0f) << "between the ranges";
    EXPECT_EQ(get_float(c[i], kLdc - 1), 0.0f) << "behind the ranges";
  }
  EXPECT_LE(error.value(), tolerance(DType::kF32, std::nullopt, kColumns));
}

std::vector<Ways> all_ways() {
  std::vector<Ways> ways;
  for (const DType operand : {DType::kF32, DType::kBF16, DType::kI8}) {
    for (const DType lora : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const auto halves :
           {Lora::Halves::kOne, Lora::Halves::kGateThenUp, Lora::Halves::kInterleaved}) {
        ways.push_back({operand, lora, halves});
      }
    }
  }
  return ways;
}

std::string ways_name(const testing::TestParamInfo<Ways>& test) {
  constexpr const char* kHalves[] = {"one", "gate_then_up", "interleaved"};
  return std::string(name(test.param.operand)) + "_" + std::string(name(test.param.lora)) + "_" +
         kHalves[static_cast<int>(test.param.halves)];
}

INSTANTIATE_TEST_SUITE_P(All, LoraWays, testing::ValuesIn(all_ways()), ways_name);

TEST(SortByAdapter, KeepsTheOrderOfRowsWithinOne) {
  const std::vector<int32_t> adapters = {2, -1, 0, 2, 0, -1};
  std::vector<int32_t> order(adapters.size());
  sort_by_adapter(adapters.data(), 6, order.data());
  EXPECT_EQ(order, (std::vector<int32_t>{1, 5, 2, 4, 0, 3}));
}

}  // namespace
}  // namespace moebius::cpu
