// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// These tests check which kernel multiplies few rows, and in what tiles.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "experts/cuda/gemm/gemm_plan.h"
#include "moebius/error.h"
#include "tests/error_text.h"
#include "tests/experts/gemm_descs.h"

namespace moebius::cuda {
namespace {

struct Decoded {
  const char* name;
  WeightFacts weights;
};

TEST(GemmPlan, FewRowsMeetCodesAndManyDecodedWeights) {
  const Decoded kCases[] = {
      {"int4", weights_in(QuantFormat::kInt4, 128)},
      {"int8", weights_in(QuantFormat::kInt8)},
      {"fp8", weights_in(QuantFormat::kFp8)},
      {"mxfp4", weights_in(QuantFormat::kMxfp4, 32, DType::kE8M0)},
      {"nvfp4", weights_in(QuantFormat::kNvfp4, 16, DType::kF8E4M3)},
  };
  for (const Decoded& c : kCases) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(std::string(c.name) + " " + std::string(moebius::name(dtype)));
      GemmDesc desc = coded(c.weights);
      desc.rows.dtype = desc.out = dtype;
      const int64_t from = least_decoded_rows(c.weights, dtype) * kGroups;
      const GemmPlan many = choose_gemm(desc, gpu_of(9), from);
      EXPECT_EQ(many.multiplier, Multiplier::kSm90);
      EXPECT_EQ(many.decodes_from, from);
      EXPECT_GE(many.decoded_elements, kGroups * kN * kK);
      EXPECT_TRUE(many.takes_index());
      EXPECT_TRUE(many.takes_arrivals());
      EXPECT_FALSE(many.takes_columns());
      const GemmPlan few = choose_gemm(desc, gpu_of(9), from - 1);
      EXPECT_EQ(few.multiplier, Multiplier::kFewRows);
      EXPECT_EQ(few.decodes_from, from);
      EXPECT_FALSE(few.decodes());
      EXPECT_TRUE(few.takes_index());
      EXPECT_FALSE(few.takes_arrivals());
      GemmDesc without_room = desc;
      without_room.may_decode = false;
      EXPECT_EQ(of(without_room), Multiplier::kFewRows);
      EXPECT_EQ(of(desc, kManyRows, 8), Multiplier::kMma);
    }
  }
}

TEST(GemmPlan, CodesOfE2m1ArePackedWhereFewRowsOfBf16MeetThem) {
  const auto packs = [](const GemmDesc& desc, int major = 9) {
    return packs_codes(desc, gpu_of(major));
  };
  GemmDesc mxfp4 = coded(weights_in(QuantFormat::kMxfp4, 32, DType::kE8M0));
  GemmDesc nvfp4 = coded(weights_in(QuantFormat::kNvfp4, 16, DType::kF8E4M3));
  EXPECT_TRUE(packs(mxfp4));
  EXPECT_TRUE(packs(nvfp4));
  EXPECT_FALSE(packs(mxfp4, 8));
  EXPECT_FALSE(packs(coded(weights_in(QuantFormat::kInt4, 128))));
  EXPECT_FALSE(packs(plain(DType::kBF16)));
  nvfp4.rows.dtype = DType::kF16;
  EXPECT_FALSE(packs(nvfp4));
  mxfp4.weights.k = kK + 16;
  EXPECT_FALSE(packs(mxfp4));
}

TEST(GemmPlan, FewRowsInBf16AreThin) {
  GemmDesc desc = plain(DType::kBF16);
  const int64_t most = kThinMeanRows * kGroups - 1;
  for (const int64_t rows : {int64_t{1}, most}) {
    const GemmPlan plan = choose_gemm(desc, gpu_of(9), rows);
    EXPECT_EQ(plan.multiplier, Multiplier::kThin) << rows;
    EXPECT_TRUE(plan.takes_index());
    EXPECT_FALSE(plan.takes_arrivals() || plan.takes_columns());
  }
  EXPECT_EQ(of(desc, most + 1), Multiplier::kSm90);
  EXPECT_EQ(of(desc, 1, 8), Multiplier::kMma) << "another architecture";
  desc.activation = ActivationSpec{};
  EXPECT_TRUE(choose_gemm(desc, gpu_of(9), 1).activates);
  testing::expect_mentions(to_string(choose_gemm(desc, gpu_of(9), 1), desc),
                           {"16 x 1536 x 2048: thin with activation"});
  desc.activation->interleaved = true;
  EXPECT_FALSE(choose_gemm(desc, gpu_of(9), 1).activates);
  EXPECT_EQ(of(desc, 1), Multiplier::kThin) << "the activation has a kernel of its own then";
  desc = plain(DType::kBF16);
  desc.num_columns = 128;
  EXPECT_EQ(of(desc, 1), Multiplier::kSm90) << "of some columns";
  desc = plain(DType::kBF16);
  desc.weights.k = 256;
  EXPECT_EQ(of(desc, 1), Multiplier::kSm90) << "K has fewer steps than the kernel has stages";
  EXPECT_EQ(of(coded(weights_in(QuantFormat::kInt8), kInt8Rows), 1), Multiplier::kSm90);
  desc.forced = Multiplier::kThin;
  testing::expect_mentions(testing::message_of<Unsupported>([&] { of(desc); }),
                           {"MOEBIUS_GEMM is thin", "K is less than 320"});
  desc = plain(DType::kBF16);
  desc.forced = Multiplier::kThin;
  EXPECT_EQ(of(desc), Multiplier::kThin) << "for any number of rows";
  desc.forced = Multiplier::kSm90;
  EXPECT_EQ(of(desc, 1), Multiplier::kSm90);
}

TEST(GemmPlan, FewestRowsByCodesAreThin) {
  const WeightFacts int4 = weights_in(QuantFormat::kInt4, 128);
  const WeightFacts mxfp4 = weights_in(QuantFormat::kMxfp4, 32, DType::kE8M0);
  const WeightFacts nvfp4 = weights_in(QuantFormat::kNvfp4, 16, DType::kF8E4M3);
  struct Case {
    WeightFacts weights;
    int64_t most_rows;
    // These are of large weights, by which the experts' other GEMM has long items, where the kernel
    // does not activate, and where it does.
    int64_t most_of_large;
    int64_t most_activated;
  };
  const Case cases[] = {{int4, kGroups * 5 / 4, 4, 9},
                        {weights_in(QuantFormat::kInt4), kGroups * 5 / 4, 4, 9},
                        {mxfp4, kGroups * 5 / 2, 9, 28},
                        {nvfp4, kGroups * 5 / 2, 28, kGroups * 5 / 2}};
  for (const auto& [weights, most_rows, most_of_large, most_activated] : cases) {
    GemmDesc desc = coded(weights);
    EXPECT_EQ(of(desc, most_rows), Multiplier::kThin);
    EXPECT_EQ(of(desc, most_rows + 1), Multiplier::kFewRows);
    EXPECT_EQ(of(desc, 1, 8), Multiplier::kMma) << "another architecture";
    EXPECT_TRUE(choose_gemm(desc, gpu_of(9), 1).takes_index());
    desc.activation = ActivationSpec{};
    EXPECT_TRUE(choose_gemm(desc, gpu_of(9), 1).activates);
    desc.codes = QuantizeSpec{QuantFormat::kFp8, GroupShape::per_token()};
    EXPECT_FALSE(choose_gemm(desc, gpu_of(9), 1).activates) << "a kernel activates to codes";
    desc.codes = QuantizeSpec{QuantFormat::kNvfp4, GroupShape{1, 16}};
    EXPECT_TRUE(choose_gemm(desc, gpu_of(9), 1).activates) << "quantized by another kernel";
    EXPECT_FALSE(choose_gemm(desc, gpu_of(9), 1).quantizes);
    desc.activation->interleaved = true;
    EXPECT_FALSE(choose_gemm(desc, gpu_of(9), 1).activates);
    EXPECT_EQ(of(desc, 1), Multiplier::kThin) << "the activation has a kernel of its own then";
    desc.most_thin_code_rows = 2;
    EXPECT_EQ(of(desc, 2), Multiplier::kThin);
    EXPECT_EQ(of(desc, 3), Multiplier::kFewRows) << "beside others";
    desc = coded(weights);
    desc.weights.k = 256;
    EXPECT_EQ(of(desc, 1), Multiplier::kFewRows) << "K has fewer steps than the kernel has stages";
    desc.weights.k = kThinCodeMostDepth + 256;
    EXPECT_EQ(of(desc, 1), Multiplier::kFewRows) << "a warp would take too long";
    desc = coded(weights);
    // Groups have 15 MiB each.  4 and 5 rows are of 3.6 and 4.3 groups on average, 9 and 10 of 7.0
    // and 7.6, and 28 and 29 of 14.9 and 15.2.
    desc.weights.n = 10 * kN;
    EXPECT_EQ(of(desc, most_of_large), Multiplier::kThin);
    EXPECT_EQ(of(desc, most_of_large + 1), Multiplier::kFewRows);
    desc.activation = ActivationSpec{};
    EXPECT_EQ(of(desc, most_activated), Multiplier::kThin) << "at most twice as many bytes";
    EXPECT_EQ(of(desc, most_activated + 1), Multiplier::kFewRows);
  }
  // Twelve rows are of 8.7 groups, whose 16 or 17 MiB each are more than 112 MiB.
  const auto of_size = [](WeightFacts weights, int64_t k) {
    weights.k = k;
    weights.n = 2 * kThinLongDepth;
    weights.gate_rows = kThinLongDepth;
    GemmDesc desc = coded(weights);
    desc.activation = ActivationSpec{};
    return desc;
  };
  EXPECT_EQ(of(of_size(int4, kThinLongDepth), 12), Multiplier::kThin);
  EXPECT_EQ(of(of_size(int4, kThinLongDepth + 256), 12), Multiplier::kFewRows) << "long items";
  EXPECT_EQ(of(of_size(mxfp4, kThinLongDepth + 256), 12), Multiplier::kThin);
  EXPECT_EQ(of(coded(weights_in(QuantFormat::kInt8)), 1), Multiplier::kFewRows) << "8 bits";
  EXPECT_EQ(of(coded(weights_in(QuantFormat::kInt4, 32)), 1), Multiplier::kFewRows);
  for (const WeightFacts& weights : {mxfp4, nvfp4}) {
    GemmDesc of_odd_depth = coded(weights);
    of_odd_depth.weights.k += 32;
    EXPECT_EQ(of(of_odd_depth, 1), Multiplier::kFewRows) << "K is not a multiple of 64";
    GemmDesc unaligned = coded(weights);
    unaligned.weights.scale_alignment = 2;
    EXPECT_EQ(of(unaligned, 1),
              weights.scale_dtype == DType::kF8E4M3 ? Multiplier::kFewRows : Multiplier::kThin);
  }
  GemmDesc desc = coded(int4);
  desc.weights.has_zero_point = true;
  EXPECT_EQ(of(desc, 1), Multiplier::kFewRows);
  desc = coded(weights_in(QuantFormat::kMxfp4, 32, DType::kE8M0));
  desc.rows.dtype = desc.out = DType::kF16;
  EXPECT_EQ(of(desc, 1), Multiplier::kFewRows) << "sums of 32 elements are scaled";
  desc = coded(nvfp4);
  desc.rows.dtype = desc.out = DType::kF16;
  EXPECT_EQ(of(desc, kGroups * 3 / 4), Multiplier::kThin);
  EXPECT_EQ(of(desc, kGroups * 3 / 4 + 1), Multiplier::kFewRows) << "codes are not packed";
  desc = coded(int4);
  desc.weights.num_groups = 1;
  EXPECT_EQ(of(desc, 1), Multiplier::kThin) << "shared experts";
  EXPECT_EQ(of(desc, 2), Multiplier::kFewRows);
}

TEST(GemmPlan, TilesOfFewRowsGoByTheMean) {
  const GemmDesc desc = coded(weights_in(QuantFormat::kInt4, 128));
  for (const auto& [mean, tile] : {std::pair(2, 16), {8, 16}, {9, 32}, {36, 48}, {37, 64}}) {
    const GemmPlan plan = choose_gemm(desc, gpu_of(9), mean * kGroups);
    ASSERT_EQ(plan.multiplier, Multiplier::kFewRows) << mean;
    EXPECT_EQ(plan.tile_rows, tile) << mean;
  }
  testing::expect_mentions(to_string(choose_gemm(desc, gpu_of(9), 2 * kGroups), desc),
                           {"few_rows in tiles of 16"});
}

// Registers have no room for the sums of a large tile and for their totals.  A step has 64 bytes of
// codes.
TEST(GemmPlan, ScalesThatChangeWithinStepsHaveNoLargeTiles) {
  const WeightFacts int8 = weights_in(QuantFormat::kInt8);
  const WeightFacts mxfp4 = weights_in(QuantFormat::kMxfp4, 32, DType::kE8M0);
  const WeightFacts nvfp4 = weights_in(QuantFormat::kNvfp4, 16, DType::kF8E4M3);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(moebius::name(dtype));
    EXPECT_EQ(few_rows_tile(int8, dtype, 59), 64);
    EXPECT_EQ(few_rows_tile(int8, dtype, 60), 192);
    EXPECT_EQ(few_rows_tile(int8, dtype, 176), 192);
    EXPECT_EQ(few_rows_tile(int8, dtype, 177), 256);
    EXPECT_EQ(few_rows_tile(nvfp4, dtype, 79), 64);
    EXPECT_EQ(few_rows_tile(nvfp4, dtype, 80), 192);
    EXPECT_EQ(few_rows_tile(weights_in(QuantFormat::kInt4), dtype, 80), 192);
    EXPECT_EQ(few_rows_tile(weights_in(QuantFormat::kInt4, 128), dtype, 115), 64);
    EXPECT_EQ(few_rows_tile(weights_in(QuantFormat::kInt4, 128), dtype, 116), 192);
    EXPECT_EQ(few_rows_tile(weights_in(QuantFormat::kInt4, 128), dtype, 79, /*folds=*/true), 64);
    EXPECT_EQ(few_rows_tile(weights_in(QuantFormat::kInt4, 128), dtype, 80, /*folds=*/true), 192);
    EXPECT_EQ(few_rows_tile(weights_in(QuantFormat::kInt4, 64), dtype, 400), 64);
    EXPECT_EQ(few_rows_tile(weights_in(QuantFormat::kInt8, 64), dtype, 71), 64);
    EXPECT_EQ(few_rows_tile(weights_in(QuantFormat::kInt8, 64), dtype, 72), 192);
    EXPECT_EQ(few_rows_tile(weights_in(QuantFormat::kInt8, 32), dtype, 400), 64);
  }
  EXPECT_EQ(few_rows_tile(mxfp4, DType::kBF16, 128), 192);
  EXPECT_EQ(few_rows_tile(mxfp4, DType::kF16, 128), 64);
}

TEST(GemmPlan, LargeTilesOfInt4HoldScalesInTheirElements) {
  const auto folds = [](const GemmDesc& desc, int64_t mean) {
    const GemmPlan plan = choose_gemm(desc, gpu_of(9), mean * kGroups);
    EXPECT_EQ(plan.multiplier, Multiplier::kFewRows);
    EXPECT_EQ(plan.tile_rows > kSmallFewRowsTile, mean >= 80) << mean;
    return plan.folds_int4;
  };
  for (const DType scales : {DType::kF32, DType::kBF16, DType::kF16}) {
    GemmDesc desc = coded(weights_in(QuantFormat::kInt4, 128, scales));
    EXPECT_FALSE(folds(desc, 79));
    EXPECT_TRUE(folds(desc, 80));
    EXPECT_TRUE(folds(coded(weights_in(QuantFormat::kInt4, 0, scales)), 200));
    desc.weights.has_zero_point = true;
    EXPECT_FALSE(folds_int4(desc)) << "zero points";
    desc = coded(weights_in(QuantFormat::kInt4, 64, scales));
    EXPECT_FALSE(folds_int4(desc)) << "scales that change within steps";
    desc = coded(weights_in(QuantFormat::kInt4, 128, scales));
    desc.out = DType::kF32;
    EXPECT_TRUE(folds_int4(desc)) << "sums to which adapters are added are rounded later";
    // Results in f32 and f16 are those of exact products.
    desc.keeps_f32 = true;
    EXPECT_EQ(folds_int4(desc), scales == DType::kBF16);
    desc = coded(weights_in(QuantFormat::kInt4, 128, scales), {DType::kF16});
    EXPECT_EQ(folds_int4(desc), scales == DType::kBF16);
  }
  EXPECT_FALSE(folds_int4(coded(weights_in(QuantFormat::kInt8, 128))));
}

}  // namespace
}  // namespace moebius::cuda
