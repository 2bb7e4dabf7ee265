// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Every kernel gives the same bits by packed codes as by codes as they come.
#include <string>
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

class PackedCodesTest : public CodedGemmTest {
 protected:
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

TEST_F(PackedCodesTest, HaveTheBitsOfCodesAsTheyCome) {
  constexpr int64_t kN = 512;
  constexpr int64_t kK = 768;
  for (const Scheme& scheme : kSchemes) {
    WeightOperand w = weight(scheme, 4, kN, kK);
    if (scheme.format == QuantFormat::kMxfp4) {
      // The largest have a decoding of their own.
      w.quant.scale = there(testing::random_bytes({4, kN, kK / 32}, DType::kE8M0, 60, 190, 2));
    }
    WeightOperand packed = w;
    packed.values = there(here(w.values));
    pack_codes(packed.values, stream_);
    packed.is_packed = true;
    EXPECT_FALSE(same(here(w.values), here(packed.values)));
    for (const std::vector<int>& rows : kRows) {
      for (const Way& way : kWays) {
        EXPECT_TRUE(same(run(w, rows, way), run(packed, rows, way)))
            << scheme.name << " by " << name(way.multiplier) << ", " << rows[0] << " rows";
      }
    }
  }
}

}  // namespace
}  // namespace moebius::cuda
