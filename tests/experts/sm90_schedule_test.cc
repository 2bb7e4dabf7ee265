// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "experts/cuda/gemm/sm90/schedule.h"

namespace moebius::cuda::sm90 {
namespace {

constexpr int kUnit = 64;  // N is a multiple of it

// Counts how often the items of a group cover each row x 64 columns.
std::vector<int> coverage(const GroupTiles& group) {
  const int units = group.num_columns / kUnit;
  std::vector<int> covered(static_cast<size_t>(group.num_rows * units));
  for (int item = 0; item < group.num_items(); ++item) {
    for (int rank = 0; rank < 2; ++rank) {
      const Tile tile = group.tile(item, rank);
      EXPECT_GT(tile.num_rows, 0);
      EXPECT_LE(tile.row + tile.num_rows, group.num_rows);
      const int end = std::min(tile.column + kTileColumns, group.num_columns);
      for (int row = tile.row; row < tile.row + tile.num_rows; ++row) {
        for (int unit = tile.column / kUnit; unit < end / kUnit; ++unit) {
          ++covered[static_cast<size_t>(row * units + unit)];
        }
      }
    }
  }
  return covered;
}

TEST(Sm90Schedule, EveryElementBelongsToOneTile) {
  for (const int columns : {64, 256, 320, 512, 768, 2880}) {
    for (const int rows : {0,   1,   63,  64,  65,   127,  128,  129,  192,  193,  256, 300,
                           384, 400, 511, 640, 2047, 2048, 2049, 2304, 2500, 4096, 4225}) {
      const std::vector<int> covered = coverage(GroupTiles(rows, columns));
      EXPECT_TRUE(std::all_of(covered.begin(), covered.end(), [](int n) { return n == 1; }))
          << rows << " rows, " << columns << " columns";
    }
  }
}

TEST(Sm90Schedule, ThePairSharesAnOperand) {
  for (const int rows : {1, 64, 65, 128, 200, 300, 640, 2112, 2500}) {
    const GroupTiles group(rows, 2880);
    for (int item = 0; item < group.num_items(); ++item) {
      const Tile first = group.tile(item, 0);
      const Tile second = group.tile(item, 1);
      EXPECT_EQ(first.shares_b, second.shares_b);
      EXPECT_EQ(first.is_small, second.is_small);
      if (first.shares_b) {
        EXPECT_EQ(first.column, second.column);
        EXPECT_EQ(first.row + kTileRows, second.row);
      } else {
        EXPECT_EQ(first.row, second.row);
        EXPECT_EQ(first.column + kTileColumns, second.column);
      }
      if (first.is_small) {
        EXPECT_FALSE(first.shares_b);
        EXPECT_LE(first.num_rows, kSmallRows);
      }
    }
  }
}

TEST(Sm90Schedule, OnlyRemaindersAreSmall) {
  EXPECT_EQ(GroupTiles(1024, 4096).num_items(), 4 * 16);
  EXPECT_EQ(GroupTiles(32, 4096).num_items(), 8);
  EXPECT_EQ(GroupTiles(128 + 64, 4096).num_items(), 8 + 8);
  EXPECT_EQ(GroupTiles(128 + 65, 4096).num_items(), 16);
  EXPECT_TRUE(GroupTiles(64, 512).tile(0, 0).is_small);
  EXPECT_FALSE(GroupTiles(65, 512).tile(0, 0).is_small);
}

TEST(Sm90Schedule, SmallTilesHaveTwoHalves) {
  const GroupTiles group(40, 1024);
  std::vector<int> covered(1024 / kNarrowColumns);
  for (int item = 0; item < group.num_items(); ++item) {
    for (int rank = 0; rank < 2; ++rank) {
      for (int half = 0; half < 2; ++half) {
        const Tile tile = half_of(group.tile(item, rank), half);
        EXPECT_EQ(tile.num_rows, 40);
        EXPECT_EQ(tile.column % kNarrowColumns, 0);
        ++covered[static_cast<size_t>(tile.column / kNarrowColumns)];
      }
    }
  }
  EXPECT_TRUE(std::all_of(covered.begin(), covered.end(), [](int n) { return n == 1; }));
}

TEST(Sm90Schedule, ItemsAreCutWhereClustersWouldHaveNone) {
  EXPECT_TRUE(cuts_items(33, false, 66));
  EXPECT_FALSE(cuts_items(34, false, 66));
  EXPECT_FALSE(cuts_items(33, true, 66));
}

TEST(Sm90Schedule, GroupsWithoutItemsArePassedOver) {
  const std::vector<int> first_items = {0, 0, 3, 3, 3, 8, 8};
  const std::vector<int> expected = {1, 1, 1, 4, 4, 4, 4, 4};
  for (int item = 0; item < 8; ++item) {
    EXPECT_EQ(group_of(first_items.data(), 6, item), expected[static_cast<size_t>(item)]);
  }
}

}  // namespace
}  // namespace moebius::cuda::sm90
