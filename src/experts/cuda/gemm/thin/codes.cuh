// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// This says where a lane's codes, rows and scales are, for the kernel of thin_codes.cu and for both
// of its ways of multiplying.
//
// k: a sum over k may take any order that both operands share.  A stage has 256 codes of a column,
// of which each lane of a quad multiplies two chunks of 32 neighbours.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/cuda/ptx.cuh"
#include "experts/cuda/gemm/dequant/few_rows_decode.cuh"
#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/gemm/thin/thin_items.cuh"
#include "experts/cuda/gemm/tile_walk.cuh"
#include "experts/cuda/gemm/weight_values.cuh"

namespace moebius::cuda::thin {

constexpr int kEight = 8;  // rows or columns side by side in a product
constexpr int kItemColumns = 2 * kEight;
constexpr int kLineBytes = 128;  // of a column in a stage, swizzled as TMA does it
constexpr int kChunk = 16;       // bytes that a lane loads at once
constexpr int kChunkCodes = 32;
constexpr int kStep = 8 * kChunkCodes;
constexpr int kEightBytes = kEight * kLineBytes;

struct Args : GemmArgs {
  CUtensorMap codes;     // boxes of both eights x kLineBytes
  const int32_t* index;  // row r is a[index[r]]; nullptr: a[r]
  bool activates;        // out has N / 2 columns
  bool lets_next_begin;  // see core/cuda/launch.cuh
  int* next_item;
  int scale_shift;      // 1 << scale_shift elements of k share a scale
  unsigned across;      // items side by side
  unsigned per_across;  // 2^32 / across, for quotients
  // Returns item / across, and sets `rest`.
  __device__ __forceinline__ unsigned tile_of(unsigned item, unsigned& rest) const {
    unsigned tile = __umulhi(item, per_across);  // or one less
    rest = item - tile * across;
    if (rest >= across) {
      ++tile;
      rest -= across;
    }
    return tile;
  }
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
// Loads a chunk of a stage, of both of the lane's columns.  `from` is its line of the first.
__device__ __forceinline__ void load_codes(uint32_t from, int chunk, uint32_t (&codes)[2][4]) {
  const int place = chunk ^ quad();
  ptx::ld_shared(from + place * kChunk, codes[0]);
  ptx::ld_shared(from + kEightBytes + place * kChunk, codes[1]);
}

// The bytes of a scale.  D is a Decoding of codes of 4 bits.
template <typename D>
constexpr int kScaleBytes = D::kIsPair ? 1 : static_cast<int>(sizeof(typename D::Scale));

// Finds the scales of both columns of a lane, and fetches those of an item to L2.
template <typename D, typename Word>
__device__ __forceinline__ void find_scales(const Args& args,
                                            const Place& place,
                                            const Word* (&scales)[2]) {
  const bool fetches = part() * kLineBytes < args.w.scale_cols * kScaleBytes<D>;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint8_t* own =
        static_cast<const uint8_t*>(args.w.scale) +
        scale_row(args.w, place.tile.group, column_of(args, place, i)) * int64_t{kScaleBytes<D>};
    scales[i] = reinterpret_cast<const Word*>(own);
    if (fetches) {
      ptx::prefetch(own + part() * kLineBytes);
    }
  }
}

}  // namespace moebius::cuda::thin
