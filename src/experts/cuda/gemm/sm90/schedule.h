// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Says which part of a grouped GEMM a pair of CTAs (a cluster) computes, by pure functions of group
// sizes that are the same on host and device.
//
// A pair's item is two tiles of kTileRows x kTileColumns of one group that share an operand: two
// tiles of rows of the same columns, or, for what is left over, two tiles of columns of the same
// rows.  A remainder of up to kSmallRows rows is a *small* tile, whose operands are swapped
// (swap-AB): its cost grows with its rows.  The items of a group are in bands of up to kBandPairs
// pairs of row tiles, and in a band by pairs of column tiles.  So the items that are computed at
// any time read few rows of either operand, and remainders read weights beside the tiles that read
// the same ones.  Where at most half of the clusters have an item, and there are small tiles only,
// each item is cut into two of half the columns, since one SM reads far slower than its share of
// what all of them read.  Items are not cut where threads copy rows: there a stage takes as long
// however wide it is (copies.cuh).
#pragma once

#include <cstdint>

namespace moebius::cuda::sm90 {

inline constexpr int kTileRows = 128;
inline constexpr int kTileColumns = 256;
inline constexpr int kNarrowColumns = 128;  // columns of half a tile
inline constexpr int kSmallRows = 64;
inline constexpr int kBandPairs = 8;

// A CTA's part of an item.
struct Tile {
  int row;        // first row, within the group
  int num_rows;   // 1 .. kTileRows
  int column;     // the first of kTileColumns; N or more: there is nothing to store
  bool shares_b;  // the pair reads the same columns, else the same rows
  bool is_small;  // num_rows <= kSmallRows, and not shares_b
};

struct GroupTiles {
  int num_rows;
  int num_columns;

  constexpr GroupTiles(int rows, int columns) : num_rows(rows), num_columns(columns) {}

  constexpr int remainder() const { return num_rows % kTileRows; }
  constexpr bool has_small() const { return remainder() > 0 && remainder() <= kSmallRows; }
  // The number of row tiles that are not small.
  constexpr int row_tiles() const {
    return num_rows / kTileRows + (remainder() > kSmallRows ? 1 : 0);
  }
  constexpr int pairs() const { return row_tiles() / 2; }
  constexpr int left_over() const { return row_tiles() % 2 + (has_small() ? 1 : 0); }
  constexpr int column_tiles() const { return (num_columns + kTileColumns - 1) / kTileColumns; }
  constexpr int column_pairs() const { return (column_tiles() + 1) / 2; }

  constexpr int num_items() const {
    return pairs() * column_tiles() + left_over() * column_pairs();
  }

  // REQUIRES: 0 <= item < num_items(); rank 0 or 1.
  constexpr Tile tile(int item, int rank) const {
    const int full_band = kBandPairs * column_tiles();
    const int num_bands = pairs() > 0 ? (pairs() + kBandPairs - 1) / kBandPairs : 1;
    const int band = item / full_band < num_bands ? item / full_band : num_bands - 1;
    const bool is_last = band == num_bands - 1;
    const int band_pairs = is_last ? pairs() - band * kBandPairs : kBandPairs;
    const int singles = is_last ? left_over() : 0;
    const int in_band = item - band * full_band;
    const int per_column_pair = 2 * band_pairs + singles;
    const int column_pair = in_band / per_column_pair;
    const int index = in_band - column_pair * per_column_pair;
    const int columns_left = column_tiles() - 2 * column_pair;
    const int num_paired = (columns_left < 2 ? columns_left : 2) * band_pairs;
    if (index < num_paired) {
      const int row = (2 * (band * kBandPairs + index % band_pairs) + rank) * kTileRows;
      const int column = (2 * column_pair + index / band_pairs) * kTileColumns;
      return {row, rows_from(row), column, true, false};
    }
    const bool is_small = has_small() && index == num_paired + singles - 1;
    const int row = (is_small ? row_tiles() : row_tiles() - 1) * kTileRows;
    return {row, rows_from(row), (2 * column_pair + rank) * kTileColumns, false, is_small};
  }

 private:
  constexpr int rows_from(int row) const {
    return num_rows - row < kTileRows ? num_rows - row : kTileRows;
  }
};

// One half of a small tile.
constexpr Tile half_of(Tile tile, int half) {
  tile.column += half * kNarrowColumns;
  return tile;
}

constexpr bool cuts_items(int num_items, bool has_large_tiles, int num_clusters) {
  return !has_large_tiles && 2 * num_items <= num_clusters;
}

// The group of an item: the last g with first_items[g] <= item; groups without items are passed
// over. first_items [num_groups + 1] is the running sum of num_items().
constexpr int group_of(const int* first_items, int num_groups, int item) {
  int low = 0;
  int high = num_groups;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first_items[middle] <= item) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace moebius::cuda::sm90
