// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/tiles/packed_weight.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "tests/experts/tile_kernel_sets.h"

namespace moebius::cpu {
namespace {

// TileGemm::others of a block and step of two experts with 40 rows (a block and a quarter) of 70
// columns (two steps and a bit).  All weights are 448, except for `code` at one place.
int others(int64_t expert,
           int64_t row,
           int64_t column,
           int code,
           int64_t block,
           int64_t step,
           Operand operand = Operand::kBF16) {
  const Tensor w = Tensor::empty({2, 40, 70}, DType::kF8E4M3);
  std::memset(w.bytes(), 0x7e, 2 * 40 * 70);
  w.bytes()[(expert * 40 + row) * 70 + column] = static_cast<std::byte>(code);
  const BlockColumns columns{.num_rows = 40};
  const PackedWeight packed(w, unscaled(QuantFormat::kFp8, 2), columns, 0, Tensor(), operand,
                            Stream());
  TileGemm gemm;
  packed.set(expert, block, gemm);
  return gemm.others[step];
}

TEST(PackedWeight, KnowsWhereACodeIsNoNormalNumber) {
  for (const int code : {0x08, 0x88, 0x7e, 0xfe}) {
    EXPECT_EQ(others(0, 0, 0, code, 0, 0), 0) << code;
  }
  for (const int code : {0x00, 0x80, 0x01, 0x87, 0x7f, 0xff}) {
    EXPECT_EQ(others(0, 0, 0, code, 0, 0), 1) << code;
    EXPECT_EQ(others(0, 0, 0, code, 0, 1), 0) << code;
    EXPECT_EQ(others(0, 31, 63, code, 0, 1), 1 << 15) << code;
    EXPECT_EQ(others(1, 39, 69, code, 1, 2), 1 << 1) << code;
  }
}

TEST(PackedWeight, KnowsWhereACodeIsNaNForF32Products) {
  for (const int code : {0x00, 0x80, 0x01, 0x87, 0x08, 0x7e}) {
    EXPECT_EQ(others(0, 0, 0, code, 0, 0, Operand::kF32), 0) << code;
  }
  for (const int code : {0x7f, 0xff}) {
    EXPECT_EQ(others(0, 0, 0, code, 0, 0, Operand::kF32), 1) << code;
    EXPECT_EQ(others(1, 39, 69, code, 1, 2, Operand::kF32), 1 << 1) << code;
  }
}

// The least and the largest scale of a block of mxfp4 weights of 40 rows and 70 columns, which are
// padded with rows and columns.
TEST(PackedWeight, KnowsTheScalesOfABlock) {
  const Tensor w = Tensor::empty({1, 40, 70}, DType::kF4E2M1);
  QuantDesc desc;
  desc.format = QuantFormat::kMxfp4;
  desc.scale = Tensor::empty({1, 40, 3}, DType::kE8M0);
  std::memset(w.bytes(), 0x11, static_cast<size_t>(w.nbytes()));
  std::memset(desc.scale.bytes(), 120, 40 * 3);
  const auto range = [](const PackedWeight& packed, int64_t block) {
    TileGemm gemm;
    packed.set(0, block, gemm);
    return std::pair(gemm.scale_exponents.least, gemm.scale_exponents.most);
  };
  const auto set = [&](int64_t row, int64_t group, int scale) {
    desc.scale.bytes()[row * 3 + group] = static_cast<std::byte>(scale);
  };
  set(31, 2, 131);
  set(39, 0, 100);
  const BlockColumns columns{.num_rows = 40};
  PackedWeight packed(w, desc, columns, 0, Tensor(), Operand::kBF16, Stream());
  EXPECT_EQ(range(packed, 0), std::pair(120, 131));
  EXPECT_EQ(range(packed, 1), std::pair(100, 120));
  set(0, 0, 0);
  set(39, 0, 120);
  packed.repack(w, desc, Tensor(), Stream());
  EXPECT_EQ(range(packed, 0), std::pair(1, 131)) << "the least scale of bf16 products is 1";
  EXPECT_EQ(range(packed, 1), std::pair(120, 120));
}

}  // namespace
}  // namespace moebius::cpu
