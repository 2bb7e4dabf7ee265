// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The expert GEMM for few rows in bf16 is compared with the one that multiplies f32 values.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "experts/cuda/activation/activation.h"
#include "experts/cuda/gemm/expert_gemm.h"
#include "tests/experts/hopper_test.h"
#include "tests/experts/random_operands.h"

namespace moebius::cuda {
namespace {

using testing::random_uniform;

struct Sizes {
  std::vector<int> rows;  // per group
  int64_t n;
  int64_t k;
};

const Sizes kSizes[] = {
    {{0, 1, 7, 8, 9, 0, 15, 16, 17, 0}, 128, 320},  // K is not a multiple of the stages' depth
    {{3, 0, 0, 70}, 64 * 7, 384},
    {{0, 0, 1}, 4096, 1024},
    {std::vector<int>(40, 2), 1536, 512},  // more items than warps
};

class ThinGemmTest : public HopperTest {
 protected:
  WeightOperand weight(int64_t groups, const Sizes& sizes) const {
    WeightOperand w;
    w.gate_rows = sizes.n / 2;
    w.values = there(random_uniform({groups, sizes.n, sizes.k}, DType::kBF16, 1, -1.0f, 1.0f));
    w.quant.bias = there(random_uniform({groups, sizes.n}, DType::kF32, 2, -2.0f, 2.0f));
    return w;
  }

  // Batched rows have room for a few more than the largest group.  Rows that are not used become
  // NaN.
  ExpertGemm gemm_of(const WeightOperand& w, const std::vector<int>& rows, bool is_batched) {
    rows_ = grouped(rows, is_batched ? *std::max_element(rows.begin(), rows.end()) + 3 : 0);
    ExpertGemm gemm;
    gemm.w = &w;
    const Tensor values =
        random_uniform({rows_.num_rows, w.values.dim(2)}, DType::kBF16, 3, -1.0f, 1.0f);
    const int64_t max_rows = is_batched ? rows_.num_rows / static_cast<int64_t>(rows.size()) : 0;
    for (int64_t r = 0; is_batched && r < rows_.num_rows; ++r) {
      if (r % max_rows >= rows[static_cast<size_t>(r / max_rows)]) {
        set_float(values, r * values.dim(1), std::numeric_limits<float>::quiet_NaN());
      }
    }
    gemm.a.values = there(values);
    gemm.rows = rows_.groups;
    gemm.out = room({rows_.num_rows, w.values.dim(1)}, DType::kF32);
    gemm.forced = Multiplier::kThin;
    return gemm;
  }

  // The error is relative to the largest element.
  static void expect_near(const Tensor& want, const Tensor& have, float tolerance) {
    float largest = 0.0f;
    for (int64_t i = 0; i < want.numel(); ++i) {
      largest = std::max(largest, std::abs(get_float(want, i)));
    }
    int64_t wrong = 0;
    for (int64_t i = 0; i < want.numel(); ++i) {
      wrong += !(std::abs(get_float(want, i) - get_float(have, i)) <= tolerance * largest) ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0);
  }

  GroupedRows rows_;  // of the last GEMM
};

TEST_F(ThinGemmTest, AgreesWithProductsOfValues) {
  for (const Sizes& sizes : kSizes) {
    const WeightOperand w = weight(static_cast<int64_t>(sizes.rows.size()), sizes);
    for (const bool is_batched : {false, true}) {
      SCOPED_TRACE("N " + std::to_string(sizes.n) + " K " + std::to_string(sizes.k) +
                   (is_batched ? ", batched" : ", sorted"));
      ExpertGemm gemm = gemm_of(w, sizes.rows, is_batched);
      const Tensor expected = by_values(gemm);
      run_expert_gemm(gemm, stream_);
      const Tensor actual = here(gemm.out);
      expect_near(expected, actual, 1e-5f);
      expect_same_bits_anyhow(gemm, actual, [&] {  // then with weights that are fetched ahead
        gemm.rows.settled = false;
        gemm.is_fetched = true;
        gemm.fetch = FetchAhead::of(w.values, 0, w.values.nbytes());
      });
      gemm.out = room(gemm.out.shape(), DType::kBF16);
      run_expert_gemm(gemm, stream_);
      EXPECT_TRUE(same(convert(actual, DType::kBF16), here(gemm.out)));
    }
  }
}

TEST_F(ThinGemmTest, TakesRowsFromWhereTheyLie) {
  const Sizes sizes{{2, 0, 9, 1}, 256, 512};
  const WeightOperand w = weight(4, sizes);
  ExpertGemm gemm = gemm_of(w, sizes.rows, false);
  const Tensor rows = here(gemm.a.values);
  const Tensor elsewhere = Tensor::zeros({20, sizes.k}, DType::kBF16);
  const Tensor index = Tensor::zeros({rows_.num_rows}, DType::kI32);
  for (int32_t r = 0; r < rows_.num_rows; ++r) {
    const int32_t at = (r * 7 + 3) % 20;
    index.data<int32_t>()[r] = at;
    std::memcpy(elsewhere[at].raw(), rows[r].raw(), static_cast<size_t>(rows[r].nbytes()));
  }
  run_expert_gemm(gemm, stream_);
  const Tensor expected = here(gemm.out);
  gemm.a.values = there(elsewhere);
  gemm.a.index = there(index);
  gemm.out = room(gemm.out.shape(), DType::kF32);
  run_expert_gemm(gemm, stream_);
  EXPECT_TRUE(same(expected, here(gemm.out)));
}

TEST_F(ThinGemmTest, ActivatesAsTheKernelOfTheActivationDoes) {
  for (const int64_t n : {256, 1536}) {
    const Sizes sizes{{1, 0, 8, 9, 3, 17}, n, 512};
    const WeightOperand w = weight(6, sizes);
    for (const bool is_batched : {false, true}) {
      ExpertGemm gemm = gemm_of(w, sizes.rows, is_batched);
      gemm.out = room(gemm.out.shape(), DType::kBF16);
      run_expert_gemm(gemm, stream_);
      const Tensor expected = room({gemm.out.dim(0), n / 2}, DType::kBF16);
      activate({}, gemm.rows, gemm.out, expected, stream_);
      ActivatedGemm activated{gemm, {}, nullptr, {}};
      activated.gemm.out = {};
      activated.out.values = room({gemm.out.dim(0), n / 2}, DType::kBF16);
      ASSERT_EQ(plan_of(activated).multiplier, Multiplier::kThin);
      ASSERT_TRUE(run_activated_gemm(activated, stream_));
      EXPECT_TRUE(same(here(expected), here(activated.out.values)));
    }
  }
}

TEST_F(ThinGemmTest, TakesGroupsWithoutRows) {
  const Sizes sizes{{0, 0, 0, 5, 0}, 512, 2048};
  const WeightOperand w = weight(5, sizes);
  ExpertGemm gemm = gemm_of(w, sizes.rows, false);
  const Tensor expected = by_values(gemm);
  run_expert_gemm(gemm, stream_);
  expect_near(expected, here(gemm.out), 1e-5f);
  const std::vector<int> none(5, 0);
  const GroupedRows empty = grouped(none, 0);
  gemm.rows = empty.groups;
  const Tensor before = here(gemm.out);
  run_expert_gemm(gemm, stream_);
  EXPECT_TRUE(same(before, here(gemm.out)));
}

TEST_F(ThinGemmTest, RowsDoNotTouchEachOther) {
  const Sizes sizes{{3, 8}, 64, 320};
  const WeightOperand w = weight(2, sizes);
  expect_rows_apart(gemm_of(w, sizes.rows, false), 5);
}

}  // namespace
}  // namespace moebius::cuda
