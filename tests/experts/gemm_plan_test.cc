// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Which kernel multiplies what.  Plans are made of facts alone, so that this needs no GPU.
#include "experts/cuda/gemm/gemm_plan.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "moebius/error.h"
#include "tests/error_text.h"
#include "tests/experts/gemm_descs.h"

namespace moebius::cuda {
namespace {

TEST(GemmPlan, OperandsOfWgmmaTakeSm90) {
  EXPECT_EQ(of(plain(DType::kBF16)), Multiplier::kSm90);
  EXPECT_EQ(of(plain(DType::kF16)), Multiplier::kSm90);
  EXPECT_EQ(of(fp8_blocks()), Multiplier::kSm90);
  EXPECT_EQ(of(coded(weights_in(QuantFormat::kInt8), kInt8Rows)), Multiplier::kSm90);
  for (const GemmDesc& desc : {plain(DType::kBF16), fp8_blocks(), fp8_columns(),
                               coded(weights_in(QuantFormat::kInt8), kInt8Rows)}) {
    const GemmPlan plan = choose_gemm(desc, gpu_of(9), kManyRows);
    EXPECT_TRUE(plan.takes_index() && plan.takes_columns());
    EXPECT_FALSE(plan.decodes());
    EXPECT_EQ(of(desc, kManyRows, 8), Multiplier::kMma) << "another architecture";
  }
}

TEST(GemmPlan, WeightsOfTheFewestRowsMakeRoomInL2) {
  for (const int64_t rows : {int64_t{1}, kGroups / 8, kGroups / 8 + 1, kManyRows}) {
    EXPECT_EQ(choose_gemm(plain(DType::kBF16), gpu_of(9), rows).evicts_weights, rows <= kGroups / 8)
        << rows << " rows";
  }
}

TEST(GemmPlan, WeightsOfBf16AreFetchedAheadWhereMostGroupsHaveFewRows) {
  const auto fetches = [](const GemmDesc& desc, int64_t rows) {
    return choose_gemm(desc, gpu_of(9), rows).fetches_ahead;
  };
  const GemmDesc desc = plain(DType::kBF16);
  for (const int64_t rows : {kGroups / 4, int64_t{kGroups}, 64 * kGroups}) {
    EXPECT_TRUE(fetches(desc, rows)) << rows << " rows";
    EXPECT_FALSE(fetches(fp8_blocks(), rows));
    EXPECT_FALSE(choose_gemm(desc, gpu_of(8), rows).fetches_ahead);
  }
  EXPECT_FALSE(fetches(desc, kGroups / 4 - 1));
  EXPECT_FALSE(fetches(desc, 64 * kGroups + 1));
  GemmDesc large = desc;
  large.weights.n = (int64_t{1} << 29) / kGroups / large.weights.k;
  EXPECT_TRUE(fetches(large, kGroups));
  large.weights.n *= 2;
  EXPECT_FALSE(fetches(large, kGroups)) << "2 GiB of weights";
  GemmDesc small = desc;
  small.weights.n = (int64_t{1} << 26) / (2 * kGroups * kK) - 64;
  EXPECT_FALSE(fetches(small, kGroups)) << "weights that L2 holds";
  GemmDesc fetched = desc;
  fetched.is_fetched = true;
  EXPECT_TRUE(choose_gemm(fetched, gpu_of(9), kGroups).evicts_weights);
}

// For any number of rows.
TEST(GemmPlan, Fp8WithScalesOfRowsAndColumnsIsMultipliedAsCodes) {
  for (const RowScales rows : {RowScales::kPerRow, RowScales::kPerGroup, RowScales::kAll}) {
    for (const bool is_per_tensor : {false, true}) {
      for (const DType scale : {DType::kF32, DType::kBF16, DType::kF16}) {
        GemmDesc desc = fp8_columns();
        desc.rows.scales = rows;
        desc.weights.scale_dtype = scale;
        if (is_per_tensor) {
          desc.weights.grid.group_rows = kN;
          desc.weights.grid.num_rows = 1;
        }
        for (const int64_t num_rows : {int64_t{1}, int64_t{kGroups}, kManyRows}) {
          const GemmPlan plan = choose_gemm(desc, gpu_of(9), num_rows);
          EXPECT_EQ(plan.multiplier, Multiplier::kSm90);
          EXPECT_EQ(plan.fp8, Fp8Scales::kRowsAndColumns);
          EXPECT_FALSE(plan.decodes());
        }
        EXPECT_FALSE(wants_bf16_codes(desc.weights, gpu_of(9), std::nullopt));
        EXPECT_FALSE(wants_bf16_codes(desc.weights, gpu_of(9), Multiplier::kSm90));
        EXPECT_TRUE(wants_bf16_codes(desc.weights, gpu_of(9), Multiplier::kFewRows));
      }
    }
  }
  EXPECT_EQ(choose_gemm(fp8_blocks(), gpu_of(9), 1).fp8, Fp8Scales::kBlocks);
  EXPECT_EQ(choose_gemm(plain(DType::kBF16), gpu_of(9), 1).fp8, Fp8Scales::kNone);
}

TEST(GemmPlan, OtherScalesOfFp8AreNotMultipliedAsCodes) {
  GemmDesc desc = fp8_columns();
  desc.keeps_f32 = true;
  EXPECT_EQ(of(desc), Multiplier::kMma) << "fp8 tensor cores keep 14 bits";
  desc = fp8_columns();
  desc.rows.block = 64;
  EXPECT_EQ(of(desc), Multiplier::kMma) << "scales of rows change along K";
  desc = fp8_columns();
  desc.weights = weights_in(QuantFormat::kFp8, 64);
  EXPECT_EQ(of(desc), Multiplier::kMma) << "scales of columns change along K";
  EXPECT_TRUE(wants_bf16_codes(desc.weights, gpu_of(9), std::nullopt));
  desc = fp8_columns();
  desc.weights.scale_alignment = 8;
  EXPECT_EQ(of(desc), Multiplier::kMma);
  EXPECT_TRUE(wants_bf16_codes(desc.weights, gpu_of(9), std::nullopt));
}

TEST(GemmPlan, OtherTypesAndSizesTakeTheOthers) {
  EXPECT_EQ(of(plain(DType::kF32)), Multiplier::kGeneral);
  GemmDesc desc = plain(DType::kF16);
  desc.out = DType::kBF16;
  EXPECT_EQ(of(desc), Multiplier::kMma);
  desc = plain(DType::kBF16);
  desc.weights.k = 2048 + 32;
  EXPECT_EQ(of(desc), Multiplier::kMma);
  desc = plain(DType::kBF16);
  desc.rows_alignment = 8;
  EXPECT_EQ(of(desc), Multiplier::kMma);
  desc = fp8_blocks();
  desc.keeps_f32 = true;
  EXPECT_EQ(of(desc), Multiplier::kMma) << "fp8 tensor cores keep 14 bits";
  desc = fp8_blocks();
  desc.weights.gate_rows = 700;
  EXPECT_EQ(of(desc), Multiplier::kMma) << "up begins within a block of columns";
  desc = coded(weights_in(QuantFormat::kInt8, 0, DType::kBF16), kInt8Rows);
  EXPECT_EQ(of(desc), Multiplier::kSm90) << "scales are in bf16";
  desc.weights.has_zero_point = true;
  EXPECT_EQ(of(desc), Multiplier::kMma);
  desc = coded(weights_in(QuantFormat::kInt4, 24));
  EXPECT_EQ(of(desc), Multiplier::kGeneral) << "groups of 24 do not come in whole steps";
}

// f16 has too few exponents for the scales of mx formats, so sums of their blocks are scaled.
TEST(GemmPlan, ScalesOfMxStayApartFromElementsInF16) {
  const WeightFacts mxfp4 = weights_in(QuantFormat::kMxfp4, 32, DType::kE8M0);
  EXPECT_EQ(decoded_blocks(mxfp4, DType::kBF16), 0);
  EXPECT_EQ(decoded_blocks(mxfp4, DType::kF16), kK / 32);
  const WeightFacts nvfp4 = weights_in(QuantFormat::kNvfp4, 16, DType::kF8E4M3);
  EXPECT_EQ(decoded_blocks(nvfp4, DType::kF16), 0);
  const WeightFacts int4 = weights_in(QuantFormat::kInt4, 128);
  EXPECT_EQ(decoded_blocks(int4, DType::kF16), kK / 128);
  EXPECT_FALSE(can_decode(int4, DType::kF32));
}

// Models in f16 whose activations are quantized to mx or nvfp4 have rows in bf16.
TEST(GemmPlan, RowsInBf16MayHaveResultsInF16) {
  GemmDesc desc = coded(weights_in(QuantFormat::kNvfp4, 16, DType::kF8E4M3));
  desc.out = DType::kF16;
  EXPECT_EQ(of(desc, 1), Multiplier::kThin);
  EXPECT_EQ(of(desc, 3 * kGroups), Multiplier::kFewRows);
  const GemmPlan many = choose_gemm(desc, gpu_of(9), kManyRows);
  EXPECT_EQ(many.multiplier, Multiplier::kSm90);
  EXPECT_TRUE(many.decodes() && !many.decodes_ahead);
}

TEST(GemmPlan, LargeWeightsOfManyRowsAreDecodedAhead) {
  const auto plan_for = [](WeightFacts weights, int64_t rows_per_group, int64_t n = 4096,
                           bool must_decode = false) {
    weights.n = n;
    weights.k = 2048;
    weights.gate_rows = weights.n / 2;
    weights.grid.num_rows = weights.n;
    weights.grid.group_cols = weights.grid.num_cols > 1 ? weights.grid.group_cols : weights.k;
    weights.grid.num_cols = weights.k / weights.grid.group_cols;
    weights.grid.gate_rows = weights.gate_rows;
    GemmDesc desc = coded(weights);
    desc.must_decode = must_decode;
    return choose_gemm(desc, gpu_of(9), rows_per_group * kGroups);
  };
  const WeightFacts mxfp4 = weights_in(QuantFormat::kMxfp4, 32, DType::kE8M0);
  for (const WeightFacts& weights :
       {mxfp4, weights_in(QuantFormat::kNvfp4, 16, DType::kF8E4M3),
        weights_in(QuantFormat::kInt4, 128), weights_in(QuantFormat::kInt8)}) {
    const GemmPlan ahead = plan_for(weights, 2048);
    EXPECT_TRUE(ahead.decodes() && ahead.decodes_ahead);
    EXPECT_FALSE(ahead.takes_index() || ahead.takes_arrivals() || ahead.takes_columns());
    EXPECT_EQ(plan_for(weights, kDecodedAheadRows).multiplier, Multiplier::kFewRows);
    const GemmPlan first = plan_for(weights, kDecodedAheadRows - 1, 4096, /*must_decode=*/true);
    EXPECT_TRUE(first.decodes() && !first.decodes_ahead);
    EXPECT_EQ(first.decoded_elements, ahead.decoded_elements);
    EXPECT_TRUE(plan_for(weights, kDecodedAheadRows, 4096, true).decodes_ahead);
    WeightFacts with_zero_points = weights;
    with_zero_points.has_zero_point = true;
    EXPECT_FALSE(plan_for(with_zero_points, kManyRows / kGroups).decodes_ahead);
  }
  EXPECT_FALSE(plan_for(weights_in(QuantFormat::kFp8), 512).decodes_ahead);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    GemmDesc desc = coded(weights_in(QuantFormat::kInt8));
    desc.rows.dtype = desc.out = dtype;
    desc.decodes_ahead = true;
    const GemmPlan plan = choose_gemm(desc, gpu_of(9), kManyRows);
    EXPECT_TRUE(plan.decodes());
    EXPECT_EQ(plan.decodes_ahead, dtype == DType::kBF16) << "in bf16 alone";
  }
  // 512 MiB hold three groups with their scales, and two beside the scales of all.
  constexpr int64_t kTwoFit = 32768;
  EXPECT_FALSE(plan_for(mxfp4, 1280, kTwoFit).decodes_ahead);
  EXPECT_TRUE(plan_for(mxfp4, 1280, kTwoFit * 3 / 4).decodes_ahead);
  const GemmPlan small = choose_gemm(coded(mxfp4), gpu_of(9), kManyRows);
  EXPECT_TRUE(small.decodes() && !small.decodes_ahead);
  GemmDesc wanted = coded(mxfp4);
  wanted.weights.num_groups = 1;
  wanted.decodes_ahead = true;
  EXPECT_FALSE(choose_gemm(wanted, gpu_of(9), kManyRows).decodes_ahead) << "a single group";
  wanted.weights.num_groups = kLeastDecodedSlots;
  EXPECT_FALSE(choose_gemm(wanted, gpu_of(9), kManyRows).decodes_ahead)
      << "scales of all groups leave room for fewer";
  wanted.weights.num_groups = kLeastDecodedSlots + 1;
  EXPECT_TRUE(choose_gemm(wanted, gpu_of(9), kManyRows).decodes_ahead);
}

TEST(GemmPlan, WeightsThatNoOtherKernelReadsAsFastAreAlwaysDecoded) {
  const GemmPlan plan =
      choose_gemm(coded(weights_in(QuantFormat::kMxfp6E3M2, 32, DType::kE8M0)), gpu_of(9), 1);
  EXPECT_EQ(plan.multiplier, Multiplier::kSm90);
  EXPECT_EQ(plan.decodes_from, 0);
  EXPECT_TRUE(plan.decodes());
  const GemmDesc by_16 = coded(weights_in(QuantFormat::kInt4, 16));
  EXPECT_EQ(of(by_16), Multiplier::kGeneral) << "scales of fewer than 32 elements";
}

TEST(GemmPlan, Gemm1ActivatesWhereAKernelDoes) {
  GemmDesc desc = plain(DType::kBF16);
  desc.activation = ActivationSpec{};
  EXPECT_TRUE(choose_gemm(desc, gpu_of(9), kManyRows).activates);
  desc.activation->interleaved = true;
  const GemmPlan apart = choose_gemm(desc, gpu_of(9), kManyRows);
  EXPECT_FALSE(apart.activates);
  EXPECT_EQ(apart.multiplier, Multiplier::kSm90) << "the activation has a kernel of its own then";

  desc = fp8_blocks();
  desc.activation = ActivationSpec{};
  desc.codes = QuantizeSpec{QuantFormat::kFp8, GroupShape{1, 128}};
  desc.out = DType::kF8E4M3;
  EXPECT_TRUE(choose_gemm(desc, gpu_of(9), kManyRows).activates);
  EXPECT_TRUE(choose_gemm(desc, gpu_of(9), kManyRows).quantizes);
  desc.weights.n = kN + 64;
  EXPECT_FALSE(choose_gemm(desc, gpu_of(9), kManyRows).activates);

  desc = fp8_columns();
  desc.activation = ActivationSpec{};
  desc.codes = QuantizeSpec{QuantFormat::kFp8, GroupShape::per_token()};
  desc.out = DType::kF8E4M3;
  for (const int64_t num_rows : {int64_t{1}, kManyRows}) {
    const GemmPlan in_bf16 = choose_gemm(desc, gpu_of(9), num_rows);
    EXPECT_TRUE(in_bf16.activates);
    EXPECT_FALSE(in_bf16.quantizes) << "a row's scale is that of all its columns";
  }
  desc.codes->group = GroupShape::per_tensor();
  EXPECT_FALSE(choose_gemm(desc, gpu_of(9), 1).quantizes) << "the scale is that of all rows";
  desc.has_static_codes = true;
  EXPECT_TRUE(choose_gemm(desc, gpu_of(9), 1).quantizes);
  desc.forced = Multiplier::kMma;
  EXPECT_FALSE(choose_gemm(desc, gpu_of(9), kManyRows).activates);

  desc = coded(weights_in(QuantFormat::kInt4, 128));
  desc.activation = ActivationSpec{};
  EXPECT_TRUE(choose_gemm(desc, gpu_of(9), kManyRows).activates);
  EXPECT_FALSE(choose_gemm(desc, gpu_of(9), 2 * kGroups).activates) << "few rows meet codes";
}

TEST(GemmPlan, ColumnsAreWholeBlocks) {
  GemmDesc desc = plain(DType::kBF16);
  desc.first_column = 256;
  desc.num_columns = 128;
  EXPECT_EQ(of(desc), Multiplier::kSm90);
  desc.num_columns = 100;
  EXPECT_EQ(of(desc), Multiplier::kMma);
}

TEST(GemmPlan, AForcedKernelIsUsedOrRefused) {
  GemmDesc desc = coded(weights_in(QuantFormat::kInt4, 128));
  for (const Multiplier multiplier :
       {Multiplier::kFewRows, Multiplier::kMma, Multiplier::kGeneral}) {
    desc.forced = multiplier;
    EXPECT_EQ(of(desc), multiplier);
    EXPECT_FALSE(choose_gemm(desc, gpu_of(9), kManyRows).decodes());
  }
  desc.forced = Multiplier::kSm90;
  EXPECT_TRUE(choose_gemm(desc, gpu_of(9), 1).decodes()) << "decoded for any number of rows";

  desc = plain(DType::kF32);
  desc.forced = Multiplier::kSm90;
  testing::expect_mentions(testing::message_of<Unsupported>([&] { of(desc); }),
                           {"MOEBIUS_GEMM is sm90", "16 x 1536 x 2048", "not both bf16"});
}

TEST(GemmPlan, LogsSayWhoMultipliesAndWhy) {
  const GemmDesc desc = coded(weights_in(QuantFormat::kInt4, 128));
  testing::expect_mentions(
      to_string(choose_gemm(desc, gpu_of(9), kManyRows), desc),
      {"16 x 1536 x 2048: sm90", "decoded weights;", "decoded from 32768 rows on"});
  GemmDesc f16 = desc;
  f16.rows.dtype = f16.out = DType::kF16;
  testing::expect_mentions(to_string(choose_gemm(f16, gpu_of(9), kManyRows), f16),
                           "of decoded weights in f16");
  GemmDesc fp8 = fp8_columns();
  fp8.activation = ActivationSpec{};
  fp8.codes = QuantizeSpec{QuantFormat::kFp8, GroupShape::per_token()};
  fp8.out = DType::kF8E4M3;
  EXPECT_EQ(to_string(choose_gemm(fp8, gpu_of(9), 1), fp8),
            "16 x 1536 x 2048: sm90 with activation, of fp8 codes with scales of rows and columns; "
            "activated rows are quantized by a kernel of their own");
  const GemmDesc f32 = plain(DType::kF32);
  testing::expect_mentions(to_string(choose_gemm(f32, gpu_of(9), 1), f32), {"general", "not sm90"});
}

// Room for decoded weights is given where decoding pays, so a call that has it decodes.
TEST(GemmPlan, RoomThatWasGivenIsUsed) {
  GemmDesc desc = coded(weights_in(QuantFormat::kInt4, 128));
  EXPECT_FALSE(choose_gemm(desc, gpu_of(9), 1).decodes());
  desc.must_decode = true;
  EXPECT_TRUE(choose_gemm(desc, gpu_of(9), 1).decodes());
  desc.may_decode = false;
  EXPECT_FALSE(choose_gemm(desc, gpu_of(9), 1).decodes());
}

TEST(GemmPlan, TheSettingNamesAKernel) {
  unsetenv("MOEBIUS_GEMM");
  EXPECT_EQ(forced_multiplier(), std::nullopt);
  setenv("MOEBIUS_GEMM", "few_rows", 1);
  EXPECT_EQ(forced_multiplier(), Multiplier::kFewRows);
  setenv("MOEBIUS_GEMM", "cutlass", 1);
  testing::expect_mentions(testing::message_of([] { forced_multiplier(); }),
                           {"cutlass", "sm90, few_rows, mma, general"});
  unsetenv("MOEBIUS_GEMM");
}

}  // namespace
}  // namespace moebius::cuda
