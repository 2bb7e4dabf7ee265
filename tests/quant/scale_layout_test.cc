// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/scale_layout.h"

#include <gtest/gtest.h>

#include <set>

#include "moebius/error.h"

namespace moebius {
namespace {

TEST(ScaleLayout, ShapesArePaddedToTiles) {
  EXPECT_EQ(swizzled_scale_shape(1, 1), (Shape{128, 4}));
  EXPECT_EQ(swizzled_scale_shape(128, 4), (Shape{128, 4}));
  EXPECT_EQ(swizzled_scale_shape(129, 5), (Shape{256, 8}));
  EXPECT_EQ(swizzled_scale_shape(0, 4), (Shape{0, 4}));
}

TEST(ScaleLayout, OffsetsWorkedOutByHand) {
  EXPECT_EQ(swizzled_scale_offset(0, 0, 8), 0);
  EXPECT_EQ(swizzled_scale_offset(0, 3, 8), 3);
  EXPECT_EQ(swizzled_scale_offset(0, 4, 8), 512);     // next column tile
  EXPECT_EQ(swizzled_scale_offset(1, 0, 8), 16);      // next of 32 rows
  EXPECT_EQ(swizzled_scale_offset(32, 0, 8), 4);      // next group of 32 rows
  EXPECT_EQ(swizzled_scale_offset(127, 3, 8), 511);   // last of the tile
  EXPECT_EQ(swizzled_scale_offset(128, 0, 8), 1024);  // next row tile: two column tiles on
  EXPECT_EQ(swizzled_scale_offset(128, 0, 5), 1024);  // padded columns count
  EXPECT_EQ(swizzled_scale_offset(200, 6, 8), 1024 + 512 + 8 * 16 + 2 * 4 + 2);
}

TEST(ScaleLayout, OffsetsAreAPermutation) {
  std::set<int64_t> seen;
  for (int64_t row = 0; row < 256; ++row) {
    for (int64_t col = 0; col < 12; ++col) {
      seen.insert(swizzled_scale_offset(row, col, 12));
    }
  }
  EXPECT_EQ(seen.size(), 256u * 12u);
  EXPECT_EQ(*seen.begin(), 0);
  EXPECT_EQ(*seen.rbegin(), 256 * 12 - 1);
}

TEST(ScaleLayout, RoundTripsAndPadsWithZeros) {
  for (const DType dtype : {DType::kE8M0, DType::kF8E4M3, DType::kU8}) {
    const Tensor scales = Tensor::empty({130, 6}, dtype);
    for (int64_t i = 0; i < scales.numel(); ++i) {
      scales.data<uint8_t>()[i] = static_cast<uint8_t>(1 + i % 254);
    }
    const Tensor swizzled = swizzle_scales(scales);
    EXPECT_EQ(swizzled.shape(), (Shape{256, 8}));
    EXPECT_EQ(swizzled.dtype(), dtype);
    int64_t num_zero = 0;
    for (int64_t i = 0; i < swizzled.numel(); ++i) {
      num_zero += swizzled.data<uint8_t>()[i] == 0 ? 1 : 0;
    }
    EXPECT_EQ(num_zero, 256 * 8 - 130 * 6);
    const Tensor back = unswizzle_scales(swizzled, 130, 6);
    for (int64_t i = 0; i < scales.numel(); ++i) {
      ASSERT_EQ(back.data<uint8_t>()[i], scales.data<uint8_t>()[i]);
    }
  }
}

TEST(ScaleLayout, RefusesOtherShapesAndTypes) {
  EXPECT_THROW(swizzle_scales(Tensor::zeros({4, 4}, DType::kF32)), InvalidArgument);
  EXPECT_THROW(swizzle_scales(Tensor::zeros({4}, DType::kE8M0)), InvalidArgument);
  EXPECT_THROW(swizzle_scales(Tensor{}), InvalidArgument);
  EXPECT_THROW(unswizzle_scales(Tensor::zeros({128, 4}, DType::kE8M0), 129, 4), InvalidArgument);
}

}  // namespace
}  // namespace moebius
