// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The expert GEMM that decodes codes in registers is compared with the one that multiplies f32
// values.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experts/cuda/activation/activation.h"
#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/rows/scaled_codes.h"
#include "tests/experts/coded_gemm_test.h"
#include "tests/experts/random_operands.h"

namespace moebius::cuda {
namespace {

using testing::random_uniform;

constexpr DType kRowTypes[] = {DType::kBF16, DType::kF16};

const Scheme kSchemes[] = {
    {"int4 by 32", QuantFormat::kInt4, Scales::kGroup, 32, 1, DType::kF32, true},
    {"int4 by 64", QuantFormat::kInt4, Scales::kGroup, 64, 1, DType::kF16},
    {"int4 by 128", QuantFormat::kInt4, Scales::kGroup, 128, 1, DType::kBF16},
    {"int4 by 256", QuantFormat::kInt4, Scales::kGroup, 256, 1, DType::kF32, true},
    {"int4 by column", QuantFormat::kInt4, Scales::kColumn},
    {"int4 by column, bf16", QuantFormat::kInt4, Scales::kColumn, 0, 1, DType::kBF16},
    {"int8 by column", QuantFormat::kInt8, Scales::kColumn, 0, 1, DType::kF32, true},
    {"int8 by 128", QuantFormat::kInt8, Scales::kGroup, 128, 1, DType::kF32, true},
    {"fp8 by column", QuantFormat::kFp8, Scales::kColumn},
    {"fp8 by tensor", QuantFormat::kFp8, Scales::kTensor},
    {"fp8 by 128 x 128", QuantFormat::kFp8, Scales::kGroup, 128, 128},
    {"fp8 by 128 x 128, e8m0", QuantFormat::kFp8, Scales::kGroup, 128, 128, DType::kE8M0},
    {"mxfp8", QuantFormat::kMxfp8, Scales::kGroup, 32, 1, DType::kE8M0},
    {"mxfp4", QuantFormat::kMxfp4, Scales::kGroup, 32, 1, DType::kE8M0},
    {"nvfp4", QuantFormat::kNvfp4, Scales::kGroup, 16, 1, DType::kF8E4M3},
    {"int4 by column, zero points", QuantFormat::kInt4, Scales::kColumn, 0, 1, DType::kF32, true},
    {"int4 by 128, zero points", QuantFormat::kInt4, Scales::kGroup, 128, 1, DType::kBF16, true},
};

const Sizes kSizes[] = {
    {{0, 1, 7, 8, 9, 0, 31, 32, 33}, 96, 1568},  // K is not a multiple of a pass
    {{16, 17, 64, 65, 200, 0}, 512, 512},
    {{5, 40}, 601, 32},
    {{3}, 96, 512},
    {{30, 20, 64, 12}, 20480, 256},  // more items than SMs
    // These have tiles of 16 rows, of which some have at most eight.
    {{0, 1, 7, 8, 9, 0, 16, 17, 0, 0}, 96, 1568},
    {{1, 0, 9, 2}, 601, 544},
    {{8, 2, 12, 0}, 20480, 256},
    // Scales of a column take several slots, some of which two items share out of the ring.
    {{3, 0, 16, 9}, 512, 2048},
    {{30, 41, 2}, 512, 2048},
    // With teams the last step is behind the end of K, and so is a part of the scales TMA brings.
    {{3, 0, 16, 9}, 512, 768},
    {{30, 41, 2}, 512, 768},
    {{8, 2, 12, 0}, 9728, 1024},  // more items than SMs, of several steps
    // Tiles of 32, 48 and 64 rows multiply each number of rows that they can.
    {{3, 16, 24, 31, 33, 2}, 192, 512},
    {{17, 24, 32, 40, 48, 50}, 192, 512},
    {{24, 32, 40, 48, 56, 64, 72, 110}, 192, 512},
    // These have tiles of 192 or 256 rows, but of int4 by 32 and 64 and of mx formats in f16.
    {{97, 192, 193, 300, 0, 130, 9, 190}, 192, 512},
    {{97, 256, 257, 300, 0, 330, 9, 190}, 192, 512},
    {{200, 120}, 601, 544},
    {{220, 300}, 20480, 256},  // more items than SMs
};

// The rows of two groups, whose mean makes tiles of 16, 32, 48, 64 and, where there are such, 192.
const std::vector<int> kSizesOfTiles[] = {{9, 0}, {9, 9}, {20, 40}, {40, 50}, {100, 100}};

using FewRowsGemmTest = CodedGemmTest;

TEST_F(FewRowsGemmTest, AgreesWithProductsOfValues) {
  for (const Scheme& scheme : kSchemes) {
    for (const Sizes& sizes : kSizes) {
      // Formats of e2m1 have two blocks on an SM where there are more items than SMs.
      const bool is_e2m1 =
          scheme.format == QuantFormat::kMxfp4 || scheme.format == QuantFormat::kNvfp4;
      if (sizes.n > 1000 && scheme.group != 128 && !is_e2m1) {
        continue;
      }
      const WeightOperand w =
          weight(scheme, static_cast<int64_t>(sizes.rows.size()), sizes.n, sizes.k);
      for (const auto& [dtype, is_batched] : {std::pair(DType::kBF16, false),
                                              {DType::kBF16, true},
                                              {DType::kF16, false},
                                              {DType::kF16, true}}) {
        SCOPED_TRACE(std::string(scheme.name) + " N " + std::to_string(sizes.n) + " K " +
                     std::to_string(sizes.k) + " " + std::string(moebius::name(dtype)) +
                     (is_batched ? ", batched" : ", sorted"));
        ExpertGemm gemm = gemm_of(w, sizes.rows, is_batched, dtype);
        ASSERT_EQ(plan_of(gemm).multiplier, Multiplier::kFewRows);
        const Tensor out = gemm.out;
        gemm.out = there(here(out));
        general_gemm(gemm, stream_);
        const Tensor expected = here(gemm.out);
        gemm.out = out;
        few_rows_gemm(gemm, plan_of(gemm), stream_);
        const Tensor actual = here(out);
        expect_near(expected, actual, 1e-5f);
        gemm.max_sms = 5;
        few_rows_gemm(gemm, plan_of(gemm), stream_);
        const Tensor again = here(out);
        EXPECT_TRUE(same(again, actual)) << "not the same bits on fewer SMs";
      }
    }
  }
}

// Each token becomes three rows, and has a slot without a row.
TEST_F(FewRowsGemmTest, HasTheSameBitsWhereTokensAreReadOnce) {
  constexpr int kTokens = 600;  // enough to be read once
  constexpr int kTopk = 4;
  constexpr int kRows = 3 * kTokens;
  const Tensor index = Tensor::zeros({kRows}, DType::kI32);
  const Tensor row_of_slot = Tensor::zeros({kTokens, kTopk}, DType::kI32);
  std::fill_n(row_of_slot.data<int32_t>(), kTokens * kTopk, -1);
  for (int row = 0; row < kRows; ++row) {
    const int token = row * 7 % kTokens;
    const int skipped = token % kTopk;
    const int slot = row / kTokens;
    index.data<int32_t>()[row] = token;
    row_of_slot.data<int32_t>()[token * kTopk + slot + (slot >= skipped ? 1 : 0)] = row;
  }
  const std::vector<int> many = {900, 0, 660, 240};
  const std::vector<int> few(50, kRows / 50);
  for (const Scheme& scheme : kSchemes) {
    for (const std::vector<int>& sizes : {many, few}) {
      const WeightOperand w = weight(scheme, static_cast<int64_t>(sizes.size()), 192, 544);
      for (const DType dtype : kRowTypes) {
        SCOPED_TRACE(std::string(scheme.name) + " " + std::string(moebius::name(dtype)) +
                     ", groups " + std::to_string(sizes.size()));
        ExpertGemm gemm = gemm_of(w, sizes, false, dtype);
        gemm.a.values = there(random_uniform({kTokens, 544}, dtype, 7, -1.0f, 1.0f));
        gemm.a.index = there(index);
        gemm.expected_rows = kRows;
        few_rows_gemm(gemm, plan_of(gemm), stream_);
        const Tensor expected = here(gemm.out);
        gemm.out = room(gemm.out.shape(), DType::kF32);
        gemm.a.row_of_slot = there(row_of_slot);
        few_rows_gemm(gemm, plan_of(gemm), stream_);
        EXPECT_TRUE(same(expected, here(gemm.out)));
      }
    }
  }
}

TEST_F(FewRowsGemmTest, RowsHaveScalesAndResultsTheirType) {
  const std::pair<Scheme, std::vector<int>> kCases[] = {
      {{"int4", QuantFormat::kInt4, Scales::kGroup, 32}, {3, 20}},
      {{"int4 by 128, in tiles of 192", QuantFormat::kInt4, Scales::kGroup, 128}, {90, 130}},
      {{"int4 by column, in tiles of 256", QuantFormat::kInt4, Scales::kColumn}, {170, 270}},
      {{"int8, in tiles of 192", QuantFormat::kInt8, Scales::kColumn}, {70, 270}},
      {{"int8, in tiles of 256", QuantFormat::kInt8, Scales::kColumn}, {170, 270}},
  };
  for (const auto& [scheme, sizes] : kCases) {
    SCOPED_TRACE(scheme.name);
    const WeightOperand w = weight(scheme, 2, 130, 256);
    const int64_t num_rows = sizes[0] + sizes[1];
    for (const auto& [rows, dtype] : {std::pair(DType::kBF16, DType::kBF16),
                                      {DType::kBF16, DType::kF16},
                                      {DType::kF16, DType::kF16}}) {
      for (const RowScales scales : {RowScales::kAll, RowScales::kPerGroup, RowScales::kPerRow}) {
        ExpertGemm gemm = gemm_of(w, sizes, false, rows);
        gemm.a.scales = scales;
        const Shape shape = scales == RowScales::kPerRow     ? Shape{num_rows, 1}
                            : scales == RowScales::kPerGroup ? Shape{2}
                                                             : Shape{1};
        gemm.a.scale = there(random_uniform(shape, DType::kF32, 8, 2.0f, 4.0f));
        gemm.a.divides = true;
        general_gemm(gemm, stream_);
        const Tensor expected = here(gemm.out);
        gemm.out = room({num_rows, 130}, dtype);
        gemm.keeps_f32 = dtype != DType::kBF16;
        few_rows_gemm(gemm, plan_of(gemm), stream_);
        expect_near(expected, convert(here(gemm.out), DType::kF32),
                    dtype == DType::kBF16 ? 4e-3f : 5e-4f);
      }
    }
  }
}

// The result takes 16 GB of the GPU, in f32.
TEST_F(FewRowsGemmTest, ResultsMayHaveMoreElementsThan32BitsCount) {
  constexpr int kRoom = 1 << 16;
  constexpr int64_t kN = 20480;
  constexpr int64_t kK = 256;
  constexpr int64_t kFirst = 2 * int64_t{kRoom};  // row of the last group
  static_assert(kFirst * kN > std::numeric_limits<int32_t>::max());
  const std::vector<int> sizes = {1, 0, 20};
  const WeightOperand w = weight(kSchemes[1], 3, kN, kK);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    SCOPED_TRACE(moebius::name(dtype));
    ExpertGemm gemm = gemm_of(w, sizes, /*is_batched=*/false);
    gemm.out = room({21, kN}, dtype);
    gemm.expected_rows = 21;  // bits go by the tile
    few_rows_gemm(gemm, plan_of(gemm), stream_);
    const Tensor expected = here(gemm.out);

    const Tensor batched = room({3 * int64_t{kRoom}, kK}, DType::kBF16);
    copy(gemm.a.values.slice(0, 1), batched.slice(0, 1), stream_);
    copy(gemm.a.values.slice(1, 21), batched.slice(kFirst, kFirst + 20), stream_);
    rows_ = grouped(sizes, kRoom);
    gemm.rows = rows_.groups;
    gemm.a.values = batched;
    gemm.out = Tensor::empty({3 * int64_t{kRoom}, kN}, dtype, stream_.device());
    few_rows_gemm(gemm, plan_of(gemm), stream_);
    EXPECT_TRUE(same(expected.slice(0, 1), here(gemm.out.slice(0, 1))));
    EXPECT_TRUE(same(expected.slice(1, 21), here(gemm.out.slice(kFirst, kFirst + 20))));
  }
}

TEST_F(FewRowsGemmTest, ActivatesRowsOnTheWay) {
  for (const Scheme& scheme : {kSchemes[2], kSchemes[6], kSchemes[13]}) {
    const WeightOperand w = weight(scheme, 2, 130, 256);
    for (const ActivationSpec& spec : {ActivationSpec{},
                                       {.kind = Activation::kSwigluOai, .interleaved = true},
                                       {.kind = Activation::kRelu2, .gated = false}}) {
      for (const DType dtype : kRowTypes) {
        SCOPED_TRACE(std::string(scheme.name) + ", kind " +
                     std::to_string(static_cast<int>(spec.kind)) + " " +
                     std::string(moebius::name(dtype)));
        ExpertGemm gemm = gemm_of(w, {3, 20}, false, dtype);
        const Tensor input =
            there(random_uniform({23, spec.gated ? 512 : 256}, dtype, 9, -3.0f, 3.0f));
        activate(spec, gemm.rows, input, gemm.a.values, stream_);
        few_rows_gemm(gemm, plan_of(gemm), stream_);
        const Tensor expected = here(gemm.out);
        gemm.a.values = input;
        gemm.a.activation = spec;
        gemm.out = there(Tensor::zeros({23, 130}, DType::kF32, Device::cpu()));
        few_rows_gemm(gemm, plan_of(gemm), stream_);
        EXPECT_TRUE(same(expected, here(gemm.out)));
      }
    }
  }
}

// A caller's global scale of nvfp4 is one for all rows, or one for each group; without one each row
// has its own.
TEST_F(FewRowsGemmTest, QuantizesRowsOnTheWay) {
  constexpr int64_t kN = 130;
  constexpr int64_t kGroups = 3;
  struct Case {
    Scheme scheme;
    RowScales scales = RowScales::kNone;
  };
  const Case kCases[] = {{kSchemes[12]},
                         {kSchemes[13]},
                         {kSchemes[14]},
                         {kSchemes[14], RowScales::kAll},
                         {kSchemes[14], RowScales::kPerGroup}};
  for (const auto& [scheme, scales] : kCases) {
    for (const int64_t k : {256, 1568, 2592, 8192}) {
      const WeightOperand w = weight(scheme, kGroups, kN, k);
      for (const DType dtype : kRowTypes) {
        for (const bool activates : {false, true}) {
          SCOPED_TRACE(std::string(scheme.name) + ", scales " +
                       std::to_string(static_cast<int>(scales)) + ", K " + std::to_string(k) + " " +
                       std::string(moebius::name(dtype)) + (activates ? ", activated" : ""));
          QuantizeSpec spec{.format = scheme.format};
          spec.group = {1, scheme.group};
          spec.global_scale_per_row =
              scheme.format == QuantFormat::kNvfp4 && scales == RowScales::kNone;
          ExpertGemm gemm = gemm_of(w, {3, 0, 20}, false);
          gemm.a.scales = scales;
          gemm.a.divides = scales != RowScales::kNone;
          if (scales != RowScales::kNone) {
            const int64_t num_scales = scales == RowScales::kAll ? 1 : kGroups;
            gemm.a.scale = there(random_uniform({num_scales}, DType::kF32, 8, 20.0f, 400.0f));
          }
          const Tensor input =
              there(random_uniform({23, activates ? 2 * k : k}, dtype, 9, -3.0f, 3.0f));
          const std::optional<ActivationSpec> activation =
              activates ? std::optional(ActivationSpec{}) : std::nullopt;
          gemm.a.values = room({23, k}, DType::kBF16);
          put_scaled_codes(spec, activation, gemm.rows, input, gemm.a, stream_);
          few_rows_gemm(gemm, plan_of(gemm), stream_);
          const Tensor expected = here(gemm.out);
          gemm.a.values = input;
          gemm.a.codes = spec;
          gemm.a.activation = activation;
          gemm.out = there(Tensor::zeros({23, kN}, DType::kF32, Device::cpu()));
          few_rows_gemm(gemm, plan_of(gemm), stream_);
          EXPECT_TRUE(same(expected, here(gemm.out)));
        }
      }
    }
  }
}

// mx scales of any size, and NaN where the format has it, have no effect beyond their columns.
TEST_F(FewRowsGemmTest, ScalesAtTheEndsOfTheirRange) {
  for (const auto& [format, dtype] : {std::pair(QuantFormat::kMxfp4, DType::kBF16),
                                      {QuantFormat::kMxfp4, DType::kF16},
                                      {QuantFormat::kMxfp8, DType::kBF16},
                                      {QuantFormat::kMxfp8, DType::kF16}}) {
    const Scheme scheme = {"mx", format, Scales::kGroup, 32, 1, DType::kE8M0};
    for (const std::vector<int>& rows : {std::vector{6}, {9, 0}, {9}}) {
      const auto groups = static_cast<int64_t>(rows.size());
      WeightOperand w = weight(scheme, groups, 96, 256);
      Tensor scale = here(w.quant.scale);
      auto* codes = reinterpret_cast<uint8_t*>(scale.raw());
      for (int64_t i = 0; i < scale.numel(); ++i) {
        const int64_t n = i / 8 % 96;
        codes[i] = static_cast<uint8_t>(n == 5 && i % 8 == 3 ? 255
                                        : n % 3 == 0         ? 140 + n
                                                             : 60 + n / 3);
      }
      w.quant.scale = there(scale);
      w.quant.bias = {};
      ExpertGemm gemm = gemm_of(w, rows, false, dtype);
      general_gemm(gemm, stream_);
      const Tensor expected = here(gemm.out);
      few_rows_gemm(gemm, plan_of(gemm), stream_);
      const Tensor actual = here(gemm.out);
      for (int64_t n = 0; n < 96; ++n) {
        float largest = 0.0f;
        for (int64_t r = 0; r < rows[0]; ++r) {
          largest = std::max(largest, std::abs(expected.data<float>()[r * 96 + n]));
        }
        for (int64_t r = 0; r < rows[0]; ++r) {
          const float want = expected.data<float>()[r * 96 + n];
          const float have = actual.data<float>()[r * 96 + n];
          EXPECT_EQ(std::isnan(want), n == 5);
          EXPECT_TRUE(n == 5 ? std::isnan(have) : std::abs(want - have) <= 1e-5f * largest)
              << name(format) << " " << moebius::name(dtype) << " rows " << rows[0] << " of "
              << groups << " groups, row " << r << " column " << n << ": " << have << ", expected "
              << want;
        }
      }
    }
  }
}

// By int4, rows become f16.
TEST_F(FewRowsGemmTest, RowsHaveElementsOfAnySize) {
  constexpr int64_t kN = 96;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kFactors[] = {1.0f, 0x1p100f, 0x1p-110f, 0.0f, 0x1p-20f, 0x1p20f};
  for (const int64_t k : {int64_t{544}, int64_t{17440}}) {  // kernels load long rows twice
    for (const Scheme& scheme : {kSchemes[0], kSchemes[2]}) {
      const WeightOperand w = weight(scheme, 2, kN, k);
      for (const std::vector<int>& sizes : kSizesOfTiles) {
        const int rows = sizes[0] + sizes[1];
        SCOPED_TRACE(std::string(scheme.name) + ", K " + std::to_string(k) + ", rows " +
                     std::to_string(rows));
        ExpertGemm gemm = gemm_of(w, sizes, false);
        const Tensor x = convert(here(gemm.a.values), DType::kF32);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t i = 0; i < k; ++i) {
            // Within a row elements differ by up to 2^12.
            x.data<float>()[r * k + i] *= std::ldexp(kFactors[r % 6], -static_cast<int>(i % 13));
          }
        }
        x.data<float>()[7 * k + 5] = kInfinity;
        x.data<float>()[8 * k + 6] = kNan;
        gemm.a.values = there(convert(x, DType::kBF16));
        general_gemm(gemm, stream_);
        const Tensor expected = here(gemm.out);
        few_rows_gemm(gemm, plan_of(gemm), stream_);
        const Tensor actual = here(gemm.out);
        for (int64_t i = 7 * kN; i < 9 * kN; ++i) {
          float& want = expected.data<float>()[i];
          float& have = actual.data<float>()[i];
          EXPECT_FALSE(std::isfinite(want));
          EXPECT_TRUE(want == have || (std::isnan(want) && std::isnan(have))) << want << have;
          want = have = 0.0f;
        }
        // Sums in f32 stray by some sqrt(K) steps.
        expect_near(expected, actual, 4e-7f * std::sqrt(static_cast<float>(k)));
      }
    }
  }
}

// Rows of one sign have sums that are far larger than results, which zero points bring back.
TEST_F(FewRowsGemmTest, RowsMayHaveOneSign) {
  for (const Scheme& scheme : {kSchemes[0], kSchemes[2]}) {
    const WeightOperand w = weight(scheme, 2, 96, 2048);
    for (const std::vector<int>& sizes : kSizesOfTiles) {
      for (const DType dtype : kRowTypes) {
        SCOPED_TRACE(std::string(scheme.name) + ", rows " + std::to_string(sizes[0]) + " " +
                     std::string(moebius::name(dtype)));
        ExpertGemm gemm = gemm_of(w, sizes, false, dtype);
        gemm.a.values = there(random_uniform(gemm.a.values.shape(), dtype, 9, 1.0f, 2.0f));
        general_gemm(gemm, stream_);
        const Tensor expected = here(gemm.out);
        few_rows_gemm(gemm, plan_of(gemm), stream_);
        expect_near(expected, here(gemm.out), 1e-5f);
      }
    }
  }
}

// Scales of groups may be 0 or NaN, and may change by any ratio from one group to the next.
TEST_F(FewRowsGemmTest, ScalesOfGroupsChangeByAnyRatio) {
  constexpr int64_t kN = 96;
  constexpr int64_t kGroups = 8;  // of a column
  constexpr float kScales[] = {1.0f, 0.0f, 0x1p-80f, 0x1p-20f, 0x1p-126f, -0x1p-3f, 0x1p40f, 0.0f};
  const auto by_128 = [](QuantFormat format, DType scales, bool has_zero_points) {
    return Scheme{"by 128", format, Scales::kGroup, 128, 1, scales, has_zero_points};
  };
  for (const auto& [scheme, dtype] :
       {std::pair(by_128(QuantFormat::kInt4, DType::kF32, true), DType::kBF16),
        {by_128(QuantFormat::kInt4, DType::kF32, true), DType::kF16},
        {by_128(QuantFormat::kInt4, DType::kBF16, false), DType::kBF16},
        {by_128(QuantFormat::kInt8, DType::kF32, false), DType::kBF16},
        {by_128(QuantFormat::kFp8, DType::kF32, false), DType::kF16}}) {
    for (const int rows : {9, 40, 100, 300}) {
      SCOPED_TRACE(std::string(name(scheme.format)) + " " + std::string(moebius::name(dtype)) +
                   ", rows " + std::to_string(rows));
      WeightOperand w = weight(scheme, 1, kN, kGroups * 128);
      const Tensor scale = convert(here(w.quant.scale), DType::kF32);
      for (int64_t n = 0; n < kN; ++n) {
        for (int64_t g = 0; g < kGroups; ++g) {
          float& own = scale.data<float>()[n * kGroups + g];
          own *= kScales[(n + g * (1 + n / 8)) % 8];
          if (n == 5 && g == 3) {
            own = std::numeric_limits<float>::quiet_NaN();
          }
        }
      }
      w.quant.scale = there(convert(scale, scheme.scale_dtype));
      w.quant.bias = {};
      ExpertGemm gemm = gemm_of(w, {rows}, false, dtype);
      general_gemm(gemm, stream_);
      const Tensor expected = here(gemm.out);
      few_rows_gemm(gemm, plan_of(gemm), stream_);
      const Tensor actual = here(gemm.out);
      for (int64_t n = 0; n < kN; ++n) {
        const auto at = [&](const Tensor& of, int64_t r) { return of.data<float>()[r * kN + n]; };
        float largest = 0.0f;
        for (int64_t r = 0; r < rows; ++r) {
          largest = std::max(largest, std::abs(at(expected, r)));
        }
        for (int64_t r = 0; r < rows; ++r) {
          const float want = at(expected, r);
          const float have = at(actual, r);
          ASSERT_TRUE(n == 5 ? std::isnan(want) && std::isnan(have)
                             : std::abs(want - have) <= 1e-5f * largest)
              << "row " << r << " column " << n << ": " << have << ", expected " << want;
        }
      }
    }
  }
}

TEST_F(FewRowsGemmTest, NanCodesStayInTheirColumns) {
  const Scheme scheme = {"fp8", QuantFormat::kFp8, Scales::kColumn};
  WeightOperand w = weight(scheme, 1, 64, 96);
  Tensor values = here(w.values);
  reinterpret_cast<uint8_t*>(values.raw())[7 * 96 + 50] = 0xff;
  w.values = there(values);
  for (const DType dtype : kRowTypes) {
    ExpertGemm gemm = gemm_of(w, {20}, false, dtype);
    few_rows_gemm(gemm, plan_of(gemm), stream_);
    const Tensor out = here(gemm.out);
    for (int64_t i = 0; i < out.numel(); ++i) {
      ASSERT_EQ(std::isnan(out.data<float>()[i]), i % 64 == 7) << i;
    }
  }
}

TEST_F(FewRowsGemmTest, RefusesWhatItCannotRead) {
  const auto takes = [&](const Scheme& scheme, int64_t k, DType rows) {
    const WeightOperand w = weight(scheme, 1, 64, k);
    ExpertGemm gemm = gemm_of(w, {4}, false);
    gemm.a.values = there(Tensor::zeros({4, k}, rows, Device::cpu()));
    return plan_of(gemm).multiplier == Multiplier::kFewRows;
  };
  EXPECT_TRUE(takes(kSchemes[0], 64, DType::kBF16));
  EXPECT_TRUE(takes(kSchemes[0], 64, DType::kF16));
  EXPECT_FALSE(takes(kSchemes[0], 64, DType::kF32));
  EXPECT_FALSE(takes(kSchemes[0], 48, DType::kBF16));
  EXPECT_FALSE(takes({"int4 by 16", QuantFormat::kInt4, Scales::kGroup, 16}, 64, DType::kBF16));
  EXPECT_FALSE(takes({"int4 by 96", QuantFormat::kInt4, Scales::kGroup, 96}, 192, DType::kBF16));
  EXPECT_FALSE(takes({"mxfp6", QuantFormat::kMxfp6E3M2, Scales::kGroup, 32, 1, DType::kE8M0}, 64,
                     DType::kBF16));
}

}  // namespace
}  // namespace moebius::cuda
