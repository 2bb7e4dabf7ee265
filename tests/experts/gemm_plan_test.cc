// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Which kernel multiplies what.  Plans are made of facts alone, so that this needs no GPU.
#include "experts/cuda/gemm/gemm_plan.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "moebius/error.h"
#include "tests/error_text.h"

namespace moebius::cuda {
namespace {

constexpr int64_t kGroups = 16;
constexpr int64_t kN = 1536;
constexpr int64_t kK = 2048;

CudaDeviceInfo gpu_of(int major) {
  CudaDeviceInfo gpu;
  gpu.major = major;
  return gpu;
}

// Weights with one scale per column where `group` is 0, else with one per so many elements of K.
WeightFacts weights_in(QuantFormat format, int64_t group = 0, DType scale = DType::kF32) {
  WeightFacts w{.num_groups = kGroups, .n = kN, .k = kK, .gate_rows = kN / 2};
  w.dtype = storage_dtype(format);
  w.format = format;
  w.shape = GroupShape{1, group > 0 ? group : -1};
  w.scale_dtype = scale;
  w.grid = {1, group > 0 ? group : kK, kN, group > 0 ? kK / group : 1, kN / 2};
  w.scale_dims = group > 0 ? 3 : 2;
  w.num_scales = kGroups * w.grid.num_rows * w.grid.num_cols;
  return w;
}

GemmDesc plain(DType dtype) {
  GemmDesc desc;
  desc.rows.dtype = dtype;
  desc.weights = {.num_groups = kGroups, .n = kN, .k = kK, .gate_rows = kN / 2, .dtype = dtype};
  desc.out = dtype;
  desc.keeps_f32 = dtype == DType::kF32;
  return desc;
}

GemmDesc coded(const WeightFacts& weights, RowFacts rows = {}) {
  GemmDesc desc;
  desc.rows = rows;
  desc.weights = weights;
  return desc;
}

GemmDesc fp8_blocks() {
  GemmDesc desc = coded(weights_in(QuantFormat::kFp8, 128),
                        {DType::kF8E4M3, RowScales::kPerRow, /*block=*/128});
  desc.weights.shape = GroupShape{128, 128};
  desc.weights.grid.group_rows = 128;
  desc.weights.grid.num_rows = kN / 128;
  return desc;
}

// fp8 weights with a scale per column and rows with a scale each.
GemmDesc fp8_columns() {
  return coded(weights_in(QuantFormat::kFp8), {DType::kF8E4M3, RowScales::kPerRow, /*block=*/kK});
}

const RowFacts kInt8Rows{DType::kI8, RowScales::kPerRow};

Multiplier of(const GemmDesc& desc, int64_t rows = kManyRows, int major = 9) {
  return choose_gemm(desc, gpu_of(major), rows).multiplier;
}

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
