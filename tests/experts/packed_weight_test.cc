// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/tiles/packed_weight.h"

#include <gtest/gtest.h>

#include <cstring>

namespace moebius::cpu {
namespace {

// Two experts of 40 rows (a block and a quarter) of 70 columns (two steps and a bit), all 448 but
// for `code` at one place.
bool has_nan(int64_t expert, int64_t row, int64_t column, int code) {
  const Tensor w = Tensor::empty({2, 40, 70}, DType::kF8E4M3);
  std::memset(w.bytes(), 0x7e, 2 * 40 * 70);
  w.bytes()[(expert * 40 + row) * 70 + column] = static_cast<std::byte>(code);
  QuantDesc desc;
  desc.format = QuantFormat::kFp8;
  desc.shape = GroupShape::per_tensor();
  desc.scale = Tensor::empty({2}, DType::kF32);
  desc.scale.data<float>()[0] = desc.scale.data<float>()[1] = 1.0f;
  const BlockColumns columns{.num_rows = 40};
  const PackedWeight packed(w, desc, columns, 0, Tensor(), false, Stream());
  TileGemm gemm;
  packed.set(1 - expert, 0, gemm);  // known of the whole weight
  return gemm.has_nan;
}

TEST(PackedWeight, KnowsWhetherACodeIsNan) {
  EXPECT_FALSE(has_nan(0, 0, 0, 0x7e));
  EXPECT_FALSE(has_nan(0, 0, 0, 0xfe));
  EXPECT_FALSE(has_nan(1, 39, 69, 0x00));
  for (const int code : {0x7f, 0xff}) {
    EXPECT_TRUE(has_nan(0, 0, 0, code)) << code;
    EXPECT_TRUE(has_nan(0, 31, 63, code)) << code;
    EXPECT_TRUE(has_nan(1, 39, 69, code)) << code;
  }
}

}  // namespace
}  // namespace moebius::cpu
