// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Every kernel gives the same bits by packed codes and scales as by those that come.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "experts/cuda/gemm/dequant/pack_codes.h"
#include "experts/cuda/gemm/expert_gemm.h"
#include "tests/experts/coded_gemm_test.h"
#include "tests/experts/random_operands.h"

namespace moebius::cuda {
namespace {

const Scheme kSchemes[] = {
    {"mxfp4", QuantFormat::kMxfp4, Scales::kGroup, 32, 1, DType::kE8M0},
    {"nvfp4", QuantFormat::kNvfp4, Scales::kGroup, 16, 1, DType::kF8E4M3},
};

struct Way {
  Multiplier multiplier;
  bool decodes_ahead = false;
};
const Way kWays[] = {{Multiplier::kThin},    {Multiplier::kFewRows}, {Multiplier::kMma},
                     {Multiplier::kGeneral}, {Multiplier::kSm90},    {Multiplier::kSm90, true}};

// By these rows of groups kFewRows has tiles of 16, 32, 48, 64, 192 and 256 rows.
const std::vector<int> kRows[] = {{1, 0, 2, 1},    {5, 16, 0, 7},      {20, 9, 30, 1},
                                  {40, 60, 0, 80}, {100, 190, 90, 70}, {200, 300, 0, 257}};

// All codes of e4m3 but NaN.
Tensor finite_scales(const Shape& shape) {
  Tensor scales = testing::random_bytes(shape, DType::kF8E4M3, 0, 255, 2);
  auto* bytes = static_cast<uint8_t*>(scales.raw());
  std::replace_if(
      bytes, bytes + scales.numel(), [](uint8_t byte) { return (byte & 0x7f) == 0x7f; }, 0x01);
  return scales;
}

class PackedCodesTest : public CodedGemmTest {
 protected:
  WeightOperand packed_of(const WeightOperand& w) {
    WeightOperand packed = w;
    packed.values = there(here(w.values));
    packed.quant.scale = there(here(w.quant.scale));
    packed.is_packed = true;
    pack_codes(packed, stream_);
    return packed;
  }
  Tensor run(const WeightOperand& w, const std::vector<int>& rows, const Way& way) {
    const bool decodes = way.multiplier == Multiplier::kSm90;
    ExpertGemm gemm = gemm_of(w, rows, false);
    gemm.forced = way.multiplier;
    if (decodes) {
      gemm.decodes_ahead = way.decodes_ahead;
      gemm.decoded = room({8 * decoded_group_elements(facts_of(w), DType::kBF16)}, DType::kBF16);
      gemm.out = room(gemm.out.shape(), DType::kBF16);
      gemm.next_item = room({2}, DType::kI32);
    }
    const GemmPlan plan = plan_of(gemm);
    EXPECT_EQ(plan.multiplier, way.multiplier);
    EXPECT_EQ(plan.decodes_ahead, way.decodes_ahead);
    run_expert_gemm(gemm, stream_);
    return here(gemm.out);
  }
};

// N and K.  By TMA come scales of mxfp4 with K 2048 and of nvfp4 with K 768, and others by threads,
// as words or as bytes.  The last size has more items than SMs, of several chunks of scales.
constexpr std::pair<int64_t, int64_t> kSizes[] = {
    {512, 768}, {512, 2048}, {512, 1344}, {9728, 1024}};

TEST_F(PackedCodesTest, HaveTheBitsOfCodesAsTheyCome) {
  for (const Scheme& scheme : kSchemes) {
    for (const auto& [n, k] : kSizes) {
      WeightOperand w = weight(scheme, 4, n, k);
      // The largest of mxfp4 have a decoding of their own.  Those of nvfp4 are also 0 and negative.
      w.quant.scale = scheme.format == QuantFormat::kMxfp4
                          ? there(testing::random_bytes({4, n, k / 32}, DType::kE8M0, 60, 190, 2))
                          : there(finite_scales({4, n, k / 16}));
      const WeightOperand packed = packed_of(w);
      EXPECT_FALSE(same(here(w.values), here(packed.values)));
      for (const std::vector<int>& rows : kRows) {
        for (const Way& way : kWays) {
          EXPECT_TRUE(same(run(w, rows, way), run(packed, rows, way)))
              << scheme.name << " by " << name(way.multiplier) << ", N " << n << ", K " << k << ", "
              << rows[0] << " rows";
        }
      }
    }
  }
}

TEST_F(PackedCodesTest, ScalesMayBeNan) {
  constexpr int64_t kN = 256;
  constexpr int64_t kK = 512;
  constexpr int64_t kColumn = 3;
  WeightOperand w = weight(kSchemes[1], 4, kN, kK);
  for (const uint8_t nan : {0x7f, 0xff}) {
    Tensor scales = finite_scales({4, kN, kK / 16});
    for (int64_t g = 0; g < 4; ++g) {
      static_cast<uint8_t*>(scales.raw())[(g * kN + kColumn) * (kK / 16) + 5] = nan;
    }
    w.quant.scale = there(scales);
    const WeightOperand packed = packed_of(w);
    for (const Way& way : kWays) {
      const Tensor out = convert(run(packed, kRows[0], way), DType::kF32);
      for (int64_t i = 0; i < out.numel(); ++i) {
        EXPECT_EQ(std::isnan(out.data<float>()[i]), i % kN == kColumn) << name(way.multiplier);
      }
    }
  }
}

}  // namespace
}  // namespace moebius::cuda
