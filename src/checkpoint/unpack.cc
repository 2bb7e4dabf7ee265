// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/unpack.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

namespace moebius::checkpoint {

namespace {

constexpr int64_t kLine = 64;  // bytes of a cache line

// Tiles are as wide and as high as a cache line has elements, so that whole lines are read and
// written.  Word has the size of an element.  Why memcpy: either side may be unaligned.
template <typename Word>
void transpose(const std::byte* src,
               int64_t src_stride,
               std::byte* dst,
               int64_t dst_stride,
               int64_t rows,
               int64_t cols) {
  constexpr int64_t kWord = sizeof(Word);
  constexpr int64_t kTile = kLine / kWord;
  using Tile = std::array<std::array<Word, size_t{kTile}>, size_t{kTile}>;
  Tile in;
  Tile out;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      const std::byte* from = src + c0 * src_stride + r0 * kWord;
      std::byte* to = dst + r0 * dst_stride + c0 * kWord;
      const int64_t num_rows = std::min(kTile, rows - r0);
      const int64_t num_cols = std::min(kTile, cols - c0);
      if (num_rows < kTile || num_cols < kTile) {
        for (int64_t r = 0; r < num_rows; ++r) {
          for (int64_t c = 0; c < num_cols; ++c) {
            std::memcpy(to + r * dst_stride + c * kWord, from + c * src_stride + r * kWord, kWord);
          }
        }
        continue;
      }
      for (size_t c = 0; c < kTile; ++c, from += src_stride) {
        std::memcpy(in[c].data(), from, kLine);
        __builtin_prefetch(from + kTile * src_stride);  // the next tile's
      }
      for (size_t r = 0; r < kTile; ++r) {
        for (size_t c = 0; c < kTile; ++c) {
          out[r][c] = in[c][r];
        }
      }
      for (size_t r = 0; r < kTile; ++r) {
        std::memcpy(to + static_cast<int64_t>(r) * dst_stride, out[r].data(), kLine);
      }
    }
  }
}

constexpr int kNibbles = 8;  // of a word
constexpr int kLanes = 16;   // words that are taken side by side: a cache line
constexpr int kSteps = 16;   // words of a row that are written side by side: another
constexpr int64_t kWordBytes = 4;

using Lanes = std::array<uint32_t, kLanes>;

// Swaps the elements (i, p + Distance) and (i + Distance, p) of 8 x 8 nibbles, where word i has the
// nibbles (i, 0..7).
template <int Distance>
void swap_nibbles(std::array<Lanes, kNibbles>& a, uint32_t low) {
  for (int i = 0; i < kNibbles; ++i) {
    if ((i & Distance) != 0) {
      continue;
    }
    Lanes& upper = a[static_cast<size_t>(i)];
    Lanes& lower = a[static_cast<size_t>(i + Distance)];
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t moved = ((upper[lane] >> (4 * Distance)) ^ lower[lane]) & low;
      lower[lane] ^= moved;
      upper[lane] ^= moved << (4 * Distance);
    }
  }
}

}  // namespace

void transpose_elements(int64_t element_bytes,
                        const std::byte* src,
                        int64_t src_stride,
                        std::byte* dst,
                        int64_t dst_stride,
                        int64_t rows,
                        int64_t cols) {
  if (element_bytes == 1) {
    transpose<uint8_t>(src, src_stride, dst, dst_stride, rows, cols);
  } else if (element_bytes == 2) {
    transpose<uint16_t>(src, src_stride, dst, dst_stride, rows, cols);
  } else {
    assert(element_bytes == 4);
    transpose<uint32_t>(src, src_stride, dst, dst_stride, rows, cols);
  }
}

void flip_signs(std::byte* data, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    data[i] ^= std::byte{0x80};
  }
}

void unpack_awq_words(const std::byte* src,
                      int64_t src_stride,
                      std::byte* dst,
                      int64_t dst_stride,
                      int64_t words,
                      int64_t cols) {
  // A tile is 16 words of 128 columns: 128 rows of 64 bytes.
  constexpr int64_t kTileCols = kSteps * kNibbles;
  std::array<std::array<uint32_t, kSteps>, kLanes * kNibbles> rows;
  std::array<Lanes, kNibbles> a{};
  for (int64_t word = 0; word < words; word += kLanes) {
    const int64_t lanes = std::min<int64_t>(kLanes, words - word);
    for (int64_t col = 0; col < cols; col += kTileCols) {
      const int64_t tile_cols = std::min(kTileCols, cols - col);
      const bool is_whole = lanes == kLanes && tile_cols == kTileCols;
      std::byte* to = dst + word * kNibbles * dst_stride + col / 2;
      for (int64_t step = 0; step * kNibbles < tile_cols; ++step) {
        const std::byte* from = src + (col + step * kNibbles) * src_stride + word * kWordBytes;
        const int64_t count = std::min<int64_t>(kNibbles, tile_cols - step * kNibbles);
        for (int64_t i = 0; i < count; ++i, from += src_stride) {
          // Why two calls: a constant size is a few instructions.
          auto& lane = a[static_cast<size_t>(i)];
          if (is_whole) {
            std::memcpy(lane.data(), from, kLine);
            __builtin_prefetch(from + kNibbles * src_stride);  // the next step's
          } else {
            std::memcpy(lane.data(), from, static_cast<size_t>(lanes * kWordBytes));
          }
        }
        for (int64_t r = 0; is_whole && r < kNibbles; ++r) {  // lines that the tile writes
          __builtin_prefetch(to + (step * kNibbles + r) * dst_stride, 1);
        }
        swap_nibbles<4>(a, 0x0000ffffu);
        swap_nibbles<2>(a, 0x00ff00ffu);
        swap_nibbles<1>(a, 0x0f0f0f0fu);
        for (size_t i = 0; i < kNibbles; ++i) {
          for (size_t lane = 0; lane < kLanes; ++lane) {
            rows[lane * kNibbles + static_cast<size_t>(kAwqOrder[i])][static_cast<size_t>(step)] =
                a[i][lane];
          }
        }
      }
      for (int64_t r = 0; r < lanes * kNibbles; ++r, to += dst_stride) {
        if (is_whole) {
          std::memcpy(to, rows[static_cast<size_t>(r)].data(), kLine);
        } else {
          std::memcpy(to, rows[static_cast<size_t>(r)].data(), static_cast<size_t>(tile_cols / 2));
        }
      }
    }
  }
}

}  // namespace moebius::checkpoint
