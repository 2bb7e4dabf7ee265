// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The adapters of the CPU experts are compared with plain sums, for rows and adapters of every
// type.
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

enum class Halves : uint8_t { kOne, kGateThenUp, kInterleaved };

struct Ways {
  DType operand;
  DType lora;
  Halves halves;
};

class LoraWays : public testing::TestWithParam<Ways> {};

TEST_P(LoraWays, AddsTheProductOfBothMatrices) {
  const auto& [operand, dtype, halves] = GetParam();
  const int64_t num_halves = halves == Halves::kOne ? 1 : 2;
  ExpertProblemMaker maker(5);
  const Tensor a = maker.normal({kAdapters, 2, num_halves * kRank, kColumns}, dtype);
  const Tensor b = maker.normal({kAdapters, 2, kWeightRows, kRank}, dtype);
  const Tensor scaling = maker.normal({kAdapters}, DType::kF32);
  const bool codes = operand == DType::kI8 || operand == DType::kF8E4M3;
  const Tensor x =
      convert(maker.normal({kRows, kColumns}, DType::kF32, codes ? 30.0f : 1.0f), operand);
  const Tensor scales = maker.normal({kRows, 2}, DType::kF32);
  const Lora lora(a, b, scaling);
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
  const std::byte* rows[kRows];
  for (int64_t i = 0; i < kRows; ++i) {
    rows[i] = x[i].bytes();
  }
  lora.shrink(tile, rows, operand, {scales.data<float>(), 2, 40}, scratch.bytes());
  constexpr int64_t kLdc = kWeightRows + 3;
  const Tensor c = Tensor::zeros({kRows, kLdc}, DType::kF32);
  // The halves of c are a column apart.  They are rows 0-11 and 12-23 of the weight, or even and
  // odd rows.
  const bool interleaved = halves == Halves::kInterleaved;
  for (int64_t half = 0; half < 2; ++half) {
    const LoraRows weight_rows = {interleaved ? half : 12 * half, interleaved ? 2 : 1, 12,
                                  num_halves == 2 ? half : 0};
    lora.expand(tile, weight_rows, c.data<float>() + 13 * half, kLdc, scratch.bytes());
  }

  RelativeError error;
  for (int64_t i = 0; i < kRows; ++i) {
    const int32_t adapter = adapters[static_cast<size_t>(i)];
    for (int64_t n = 0; n < kWeightRows; ++n) {
      const int64_t half = halves == Halves::kOne           ? 0
                           : halves == Halves::kInterleaved ? n % 2
                                                            : n / (kWeightRows / 2);
      double sum = 0;
      for (int64_t j = 0; adapter >= 0 && j < kRank; ++j) {
        double inner = 0;
        const Tensor a_row = a[adapter][kExpert][half * kRank + j];
        for (int64_t k = 0; k < kColumns; ++k) {
          const double scale = codes ? static_cast<double>(get_float(scales[i], k / 40)) : 1.0;
          inner += static_cast<double>(get_float(a_row, k)) *
                   static_cast<double>(get_float(x[i], k)) * scale;
        }
        sum += inner * static_cast<double>(get_float(b[adapter][kExpert][n], j)) *
               static_cast<double>(get_float(scaling, adapter));
      }
      const int64_t column = interleaved ? n % 2 * 13 + n / 2 : n < 12 ? n : n + 1;
      const float got = get_float(c[i], column);
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
  for (const DType operand : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8, DType::kF8E4M3}) {
    for (const DType lora : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const auto halves : {Halves::kOne, Halves::kGateThenUp, Halves::kInterleaved}) {
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
