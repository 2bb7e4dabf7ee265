// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The expert GEMM for the fewest rows by codes of 4 bits is compared with the one that multiplies
// f32 values.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "experts/cuda/activation/activation.h"
#include "experts/cuda/gemm/expert_gemm.h"
#include "tests/experts/coded_gemm_test.h"
#include "tests/experts/random_operands.h"

namespace moebius::cuda {
namespace {

using testing::random_uniform;

const Scheme kMxfp4 = {"mxfp4", QuantFormat::kMxfp4, Scales::kGroup, 32, 1, DType::kE8M0};
const Scheme kNvfp4 = {"nvfp4", QuantFormat::kNvfp4, Scales::kGroup, 16, 1, DType::kF8E4M3};
const Scheme kInt4 = {"int4 by 128", QuantFormat::kInt4, Scales::kGroup, 128, 1, DType::kBF16};
const Scheme kSchemes[] = {
    kMxfp4,
    kNvfp4,
    kInt4,
    {"int4 by 128, f16", QuantFormat::kInt4, Scales::kGroup, 128, 1, DType::kF16},
    {"int4 by 256", QuantFormat::kInt4, Scales::kGroup, 256},
    {"int4 by column", QuantFormat::kInt4, Scales::kColumn},
};

const Sizes kSizes[] = {
    {{0, 1, 7, 8, 9, 0, 15, 16, 17, 0}, 96, 576},  // K is not a multiple of a stage
    {{0, 1, 7, 8, 9, 0, 15, 16, 17, 0}, 96, 544},  // nor of 64, which int4 takes
    {{3, 0, 0, 70}, 432, 512},
    {{0, 0, 1}, 4096, 1024},
    {std::vector<int>(40, 2), 1536, 768},  // more items than warps
    {{2100, 3}, 32, 512},                  // more tiles than the table of a block has
};

// Returns whether K may be other than a multiple of 64.
bool takes_odd_depth(const Scheme& scheme) {
  return scheme.format == QuantFormat::kInt4;
}

class ThinCodesGemmTest : public CodedGemmTest {
 protected:
  ExpertGemm thin_gemm_of(const WeightOperand& w,
                          const std::vector<int>& rows,
                          bool is_batched = false,
                          DType dtype = DType::kBF16) {
    ExpertGemm gemm = gemm_of(w, rows, is_batched, dtype);
    gemm.forced = Multiplier::kThin;
    return gemm;
  }
};

TEST_F(ThinCodesGemmTest, AgreesWithProductsOfValues) {
  for (const Scheme& scheme : kSchemes) {
    for (const Sizes& sizes : kSizes) {
      if (sizes.k % 64 != 0 && !takes_odd_depth(scheme)) {
        continue;
      }
      const WeightOperand w =
          weight(scheme, static_cast<int64_t>(sizes.rows.size()), sizes.n, sizes.k);
      for (const auto& [dtype, is_batched] : {std::pair(DType::kBF16, false),
                                              {DType::kBF16, true},
                                              {DType::kF16, false},
                                              {DType::kF16, true}}) {
        if (dtype == DType::kF16 && scheme.format == QuantFormat::kMxfp4) {
          continue;
        }
        SCOPED_TRACE(std::string(scheme.name) + " N " + std::to_string(sizes.n) + " K " +
                     std::to_string(sizes.k) + " " + std::string(moebius::name(dtype)) +
                     (is_batched ? ", batched" : ", sorted"));
        ExpertGemm gemm = thin_gemm_of(w, sizes.rows, is_batched, dtype);
        const Tensor expected = by_values(gemm);
        run_expert_gemm(gemm, stream_);
        const Tensor actual = here(gemm.out);
        expect_near(expected, actual, 1e-5f);
        expect_same_bits_anyhow(gemm, actual, [] {});
        for (const DType out : {DType::kBF16, DType::kF16}) {
          gemm.out = room(gemm.out.shape(), out);
          run_expert_gemm(gemm, stream_);
          EXPECT_TRUE(same(convert(actual, out), here(gemm.out)));
        }
      }
    }
  }
}

TEST_F(ThinCodesGemmTest, TakesRowsFromWhereTheyLieWithTheirScales) {
  const WeightOperand w = weight(kInt4, 4, 256, 768);
  ExpertGemm gemm = thin_gemm_of(w, {2, 0, 9, 1});
  const Tensor index = Tensor::zeros({12}, DType::kI32);
  for (int32_t r = 0; r < 12; ++r) {
    index.data<int32_t>()[r] = (r * 7 + 3) % 20;
  }
  gemm.a.values = there(random_uniform({20, 768}, DType::kBF16, 7, -1.0f, 1.0f));
  gemm.a.index = there(index);
  for (const RowScales scales : {RowScales::kAll, RowScales::kPerGroup, RowScales::kPerRow}) {
    gemm.a.scales = scales;
    const Shape shape = scales == RowScales::kPerRow     ? Shape{20, 1}
                        : scales == RowScales::kPerGroup ? Shape{4}
                                                         : Shape{1};
    gemm.a.scale = there(random_uniform(shape, DType::kF32, 8, 2.0f, 4.0f));
    gemm.a.divides = scales != RowScales::kAll;
    gemm.out = room({12, 256}, DType::kF32);
    run_expert_gemm(gemm, stream_);
    const Tensor actual = here(gemm.out);
    ExpertGemm other = gemm;
    other.forced = Multiplier::kFewRows;
    other.out = room({12, 256}, DType::kF32);
    run_expert_gemm(other, stream_);
    expect_near(here(other.out), actual, 1e-5f);
  }
}

TEST_F(ThinCodesGemmTest, ActivatesAsTheKernelOfTheActivationDoes) {
  const std::vector<int> rows = {1, 0, 8, 9, 3, 17};
  for (const Scheme& scheme : {kMxfp4, kNvfp4, kInt4}) {
    for (const int64_t n : {96, 1536}) {
      const WeightOperand w = weight(scheme, 6, n, takes_odd_depth(scheme) ? 544 : 576);
      for (const bool is_batched : {false, true}) {
        ExpertGemm gemm = thin_gemm_of(w, rows, is_batched);
        gemm.out = room({gemm.out.dim(0), n}, DType::kBF16);
        run_expert_gemm(gemm, stream_);
        const Tensor expected = room({gemm.out.dim(0), n / 2}, DType::kBF16);
        activate({}, gemm.rows, gemm.out, expected, stream_);
        ActivatedGemm activated{gemm, {}, nullptr, {}};
        activated.gemm.out = {};
        activated.out.values = room(expected.shape(), DType::kBF16);
        ASSERT_EQ(plan_of(activated).multiplier, Multiplier::kThin);
        ASSERT_TRUE(run_activated_gemm(activated, stream_));
        EXPECT_TRUE(same(here(expected), here(activated.out.values))) << scheme.name << " " << n;
      }
    }
  }
}

// mx scales of any size, and NaN, have no effect beyond their columns.
TEST_F(ThinCodesGemmTest, ScalesAtTheEndsOfTheirRange) {
  constexpr int64_t kN = 96;
  constexpr int64_t kScales = 16;
  WeightOperand w = weight(kMxfp4, 2, kN, 32 * kScales);
  Tensor scale = here(w.quant.scale);
  auto* codes = reinterpret_cast<uint8_t*>(scale.raw());
  for (int64_t i = 0; i < scale.numel(); ++i) {
    const int64_t n = i / kScales % kN;
    codes[i] = static_cast<uint8_t>(n == 5 && i % kScales == 3 ? 255
                                    : n % 3 == 0               ? 140 + n
                                                               : 60 + n / 3);
  }
  w.quant.scale = there(scale);
  w.quant.bias = {};
  const ExpertGemm gemm = thin_gemm_of(w, {5, 9});
  const Tensor expected = by_values(gemm);
  run_expert_gemm(gemm, stream_);
  const Tensor actual = here(gemm.out);
  for (int64_t r = 0; r < 14; ++r) {
    for (int64_t n = 0; n < kN; ++n) {
      const float want = get_float(expected, r * kN + n);
      const float have = get_float(actual, r * kN + n);
      EXPECT_EQ(std::isnan(have), n == 5) << r << " " << n;
      EXPECT_EQ(std::isnan(want), n == 5) << r << " " << n;
      if (n != 5) {
        EXPECT_NEAR(have / want, 1.0f, 1e-3f) << r << " " << n;
      }
    }
  }
}

// Rows of int4 are rounded to steps that go by the largest of 128 neighbours.
TEST_F(ThinCodesGemmTest, RowsOfAnySizeByInt4) {
  constexpr int64_t kK = 768;
  WeightOperand w = weight(kInt4, 2, 96, kK);
  w.quant.bias = {};
  ExpertGemm gemm = thin_gemm_of(w, {3, 2});
  const Tensor rows = here(gemm.a.values);
  for (int64_t r = 0; r < 5; ++r) {
    for (int64_t k = 0; k < kK; ++k) {
      const auto exponent = static_cast<int>(r == 0   ? -100
                                             : r == 1 ? 20 * (k / 128) - 60
                                             : r == 2 ? (k % 128 == 77 ? 12 : 0)
                                                      : 100);
      set_float(rows, r * kK + k, std::ldexp(get_float(rows, r * kK + k), exponent));
    }
  }
  gemm.a.values = there(rows);
  const Tensor expected = by_values(gemm);
  run_expert_gemm(gemm, stream_);
  const Tensor actual = here(gemm.out);
  for (int64_t r = 0; r < 5; ++r) {
    SCOPED_TRACE("row " + std::to_string(r));
    expect_near(expected.slice(r, r + 1), actual.slice(r, r + 1), 1e-5f);
  }
}

// An infinite element and NaN give what they give as values, in their rows alone.
TEST_F(ThinCodesGemmTest, InfinityAndNaNInRowsOfInt4) {
  constexpr int64_t kN = 96;
  constexpr int64_t kK = 768;
  const WeightOperand w = weight(kInt4, 2, kN, kK);
  ExpertGemm gemm = thin_gemm_of(w, {3, 2});
  const Tensor rows = here(gemm.a.values);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  set_float(rows, 0 * kK + 130, kInfinity);
  set_float(rows, 2 * kK + 767, -kInfinity);
  set_float(rows, 3 * kK + 5, std::numeric_limits<float>::quiet_NaN());
  gemm.a.values = there(rows);
  const Tensor expected = by_values(gemm);
  run_expert_gemm(gemm, stream_);
  const Tensor actual = here(gemm.out);
  for (int64_t i = 0; i < expected.numel(); ++i) {
    const float want = get_float(expected, i);
    const float have = get_float(actual, i);
    EXPECT_EQ(std::isnan(have), std::isnan(want)) << i / kN << " " << i % kN;
    if (std::isinf(want)) {
      EXPECT_EQ(have, want) << i / kN << " " << i % kN;
    }
  }
}

TEST_F(ThinCodesGemmTest, RowsDoNotTouchEachOther) {
  for (const Scheme& scheme : {kInt4, kMxfp4, kNvfp4}) {
    SCOPED_TRACE(scheme.name);
    const int64_t k = takes_odd_depth(scheme) ? 544 : 576;
    const WeightOperand w = weight(scheme, 2, 64, k);
    expect_rows_apart(thin_gemm_of(w, {3, 8}), k - 1);
  }
}

}  // namespace
}  // namespace moebius::cuda
