// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// This says where a lane's codes, rows and scales are, for the kernel of thin_codes.cu and for both
// of its ways of multiplying.
//
// k: a sum over k may take any order that both operands share.  A stage has 256 codes of a column;
// of each half, lane l of a quad multiplies the 32 neighbours from 32 l on.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "core/cuda/ptx.cuh"
#include "experts/cuda/gemm/dequant/few_rows_decode.cuh"
#include "experts/cuda/gemm/dequant/few_rows_scales.cuh"
#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/gemm/thin/thin_items.cuh"
#include "experts/cuda/gemm/tile_walk.cuh"
#include "experts/cuda/gemm/weight_values.cuh"

namespace moebius::cuda::thin {

constexpr int kEight = 8;  // rows or columns side by side in a product
constexpr int kItemColumns = 2 * kEight;
constexpr int kLineBytes = 128;  // of a column in a stage, swizzled as TMA does it
constexpr int kChunk = 16;       // bytes that a lane loads at once
constexpr int kHalves = 2;       // of a line
constexpr int kHalf = 128;       // codes in one
constexpr int kLane = 32;        // codes of a lane in a half
constexpr int kStep = kHalves * kHalf;
constexpr int kEightBytes = kEight * kLineBytes;

struct Args : GemmArgs {
  CUtensorMap codes;     // boxes of both eights x kLineBytes
  const int32_t* index;  // row r is a[index[r]]; nullptr: a[r]
  bool activates;        // out has N / 2 columns
  bool lets_next_begin;  // see core/cuda/launch.cuh
  int* next_item;
  int scale_shift;  // 1 << scale_shift elements of k share a scale

  __device__ __forceinline__ int across() const { return n / kItemColumns; }
  // From an item's first eight columns to the others.
  __device__ __forceinline__ int to_second() const { return activates ? n / 2 : kEight; }
};

struct Place {
  Tile tile;
  int column;  // first, of the first eight
};

__device__ __forceinline__ int warp() {
  return static_cast<int>(threadIdx.x) / kWarp;
}
__device__ __forceinline__ int lane() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
// The lane's column in an eight, and its row.
__device__ __forceinline__ int quad() {
  return lane() / 4;
}
__device__ __forceinline__ int part() {
  return lane() % 4;
}
__device__ __forceinline__ int column_of(const Args& args, const Place& place, int i) {
  return place.column + quad() + (i == 0 ? 0 : args.to_second());
}
// Returns a row of the tile, from k on.
template <typename T>
__device__ __forceinline__ const T* row_of(const Args& args, const Place& place, int row, int k) {
  const int own = place.tile.row + min(row, place.tile.rows - 1);
  return reinterpret_cast<const T*>(args.a.values) +
         int64_t{args.index != nullptr ? args.index[own] : own} * args.k + k;
}
// Loads the lane's codes of a half of a stage, of both columns.  `from` is its line of the first.
__device__ __forceinline__ void load_codes(uint32_t from, int half, uint32_t (&codes)[2][4]) {
  const int chunk = (part() + 4 * half) ^ quad();
  ptx::ld_shared(from + chunk * kChunk, codes[0]);
  ptx::ld_shared(from + kEightBytes + chunk * kChunk, codes[1]);
}

// LaneScales finds and loads the scales of both columns of a lane.  D is a Decoding of codes of 4
// bits.
template <typename D>
class LaneScales {
 public:
  // For a half of a stage a lane has one scale, or two of 16 neighbours each.
  using Scale = typename D::Scale;
  using Word = std::conditional_t<sizeof(Scale) == 4,
                                  uint32_t,
                                  std::conditional_t<sizeof(Scale) == 2, uint16_t, uint8_t>>;
  using Words = uint32_t[kHalves][2];

  // Fetches the scales of an item to L2.
  __device__ __forceinline__ static void fetch(const Args& args, const Place& place) {
    const int bytes = args.w.scale_cols * int{sizeof(Scale)} / kScalesOfWord;
    if (part() * kLineBytes < bytes) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ptx::prefetch(of(args, place, i) + part() * kLineBytes);
      }
    }
  }
  __device__ __forceinline__ void aim(const Args& args, const Place& place) {
    from_[0] = of(args, place, 0);
    from_[1] = of(args, place, 1);
  }
  // Loads those of the stage whose first half the lane multiplies from k on.
  __device__ __forceinline__ void load(const Args& args, int lane_k, Words& words) const {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const auto k = static_cast<uint32_t>(min(lane_k + half * kHalf, args.k - kLane));
      const uint32_t word = D::kIsPair ? k / kLane : k >> args.scale_shift;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        words[half][i] = reinterpret_cast<const Word*>(from_[i])[word];
      }
    }
  }

 private:
  static constexpr int kScalesOfWord = D::kIsPair ? 2 : 1;

  __device__ __forceinline__ static const uint8_t* of(const Args& args, const Place& place, int i) {
    return static_cast<const uint8_t*>(args.w.scale) +
           scale_row(args.w, place.tile.group, column_of(args, place, i)) *
               int64_t{sizeof(Scale) / kScalesOfWord};
  }

  const uint8_t* from_[2];
};

}  // namespace moebius::cuda::thin
