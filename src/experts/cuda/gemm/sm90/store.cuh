// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How a consumer thread of the grouped GEMM's kernel turns its sums into rows of out.
#pragma once

#include <type_traits>

#include "core/cuda/floats.cuh"
#include "experts/cuda/gemm/sm90/shared.cuh"

namespace moebius::cuda::sm90 {

// Which rows and columns of D a consumer thread has, see wgmma.cuh.
struct Place {
  int warpgroup = ptx::uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  int quad = static_cast<int>(threadIdx.x) % kWarp / 4;
  int lane = static_cast<int>(threadIdx.x) % 4;  // in the quad

  // Says which of the consumer warps this is.
  __device__ __forceinline__ int consumer_warp() const {
    return warpgroup * (kWarpgroup / kWarp) + warp;
  }
};

// These apply a value of their column to sums.
struct Multiply {
  __device__ __forceinline__ void operator()(float& sum, float value) const { sum *= value; }
};
struct Add {
  __device__ __forceinline__ void operator()(float& sum, float value) const { sum += value; }
};

// The columns of out.
template <typename Config>
__device__ __forceinline__ int out_width(const Args& args) {
  return Config::kActivates ? args.n / 2 : args.n;
}
template <typename Config>
__device__ __forceinline__ auto* out_at(const Args& args, int row, int column) {
  return static_cast<typename Config::Out*>(args.out) +
         (int64_t{row} * out_width<Config>(args) + column);
}

// A thread has eight neighbours of 32 columns in either of its rows, see kColumnsInOrder.  `block`:
// which 32 columns of the tile.
template <typename Sums>
__device__ __forceinline__ auto& sum_of(Sums& sums, int block, int half, int i) {
  return sums[4 * (4 * block + i / 2) + 2 * half + i % 2];
}
inline constexpr int kColumnBlocks = kTileColumns / kColumnsInOrder;
inline constexpr int kBoxBlocks = kColumnBlocks / 2;

// The thread's row in a large tile.
__device__ __forceinline__ int row_in_tile(const Place& at, int half) {
  return at.warpgroup * 64 + at.warp * 16 + 8 * half + at.quad;
}

// The address of the value of column `column` of a tile's group.  step is 1 for values [G, N], 0
// for [G].
template <typename T>
__device__ __forceinline__ const T* value_of_column(
    const Args& args, const T* values, int step, const Work& work, int column) {
  return values + (step > 0 ? int64_t{work.group} * args.n + column : work.group);
}

// Loads the values of eight neighbouring columns.
template <typename T>
__device__ __forceinline__ void load_columns(const T* values, int step, float (&eight)[8]) {
  if (step > 0) {
    widen(load_raw(values), eight);
  } else {
#pragma unroll
    for (float& value : eight) {
      value = load1(values);
    }
  }
}

// Calls apply(sum, value of its column) for all sums.
// REQUIRES: values are 16-byte aligned.
template <typename Config, typename T, typename Apply>
__device__ __forceinline__ void apply_columns(const Args& args,
                                              const T* values,
                                              int step,
                                              const Place& at,
                                              const Work& work,
                                              float (&sums)[kTileColumns / 2],
                                              const Apply& apply) {
#pragma unroll
  for (int block = 0; block < kColumnBlocks; ++block) {
    if (work.column + kColumnsInOrder * block < args.end_column) {
      const int column = box_column<Config>(args, work, block / kBoxBlocks) +
                         kColumnsInOrder * (block % kBoxBlocks) + 8 * at.lane;
      float eight[8];
      load_columns(value_of_column(args, values, step, work, column), step, eight);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        apply(sum_of(sums, block, 0, i), eight[i]);
        apply(sum_of(sums, block, 1, i), eight[i]);
      }
    }
  }
}

// The scale of a row of the tile; rows behind the last have that of the last.
__device__ __forceinline__ float scale_of_row(const Args& args, const Work& work, int row) {
  const int at = row_of_a(args, work.row + min(row, work.num_rows - 1));
  return args.a_scale[int64_t{at} * args.a_row_step + work.group * args.a_group_step];
}

// Multiplies sums by the scales of the thread's two rows.
__device__ __forceinline__ void scale_rows(const float (&scales)[2],
                                           float (&sums)[kTileColumns / 2]) {
#pragma unroll
  for (int i = 0; i < kTileColumns / 2; ++i) {
    sums[i] *= scales[i / 2 % 2];
  }
}
__device__ __forceinline__ void apply_rows(const Args& args,
                                           const Place& at,
                                           const Work& work,
                                           float (&sums)[kTileColumns / 2]) {
  const float scales[2] = {scale_of_row(args, work, row_in_tile(at, 0)),
                           scale_of_row(args, work, row_in_tile(at, 1))};
  scale_rows(scales, sums);
}

// Stores rows; four lanes store 32 columns of a row.  finished(half, block, i) gives the i-th of a
// lane's eight.
template <typename Config, typename Finished>
__device__ __forceinline__ void store_rows(const Args& args,
                                           const Place& at,
                                           const Work& work,
                                           const Finished& finished) {
  const int blocks = (args.end_column - work.column) / kColumnsInOrder;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_in_tile(at, half);
    if (row < work.num_rows) {
      auto* to = out_at<Config>(args, work.row + row, work.column + 8 * at.lane);
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
        if (block < blocks) {
          float eight[8];
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            eight[i] = finished(half, block, i);
          }
          store8(to + kColumnsInOrder * block, eight);
        }
      }
    }
  }
}

// Gives the finished() of exact sums, which scales them by row and column.  Why they are scaled on
// the way to memory: there are no registers for all of them as floats, too.
template <typename T>
__device__ __forceinline__ auto exact_sums(const Args& args,
                                           const T* column_scale,
                                           const Place& at,
                                           const Work& work,
                                           const int32_t (&sums)[kTileColumns / 2]) {
  const int first = work.column + 8 * at.lane;
  const T* scales = value_of_column(args, column_scale, args.column_step, work, first);
  const float* bias = value_of_column(args, args.bias, 1, work, first);
  return [=, &args, &sums, low = scale_of_row(args, work, row_in_tile(at, 0)),
          high = scale_of_row(args, work, row_in_tile(at, 1))](int half, int block, int i) {
    const int column = kColumnsInOrder * block + i;
    const float sum = static_cast<float>(sum_of(sums, block, half, i)) * (half == 0 ? low : high) *
                      load1(scales + column * args.column_step);
    return args.bias != nullptr ? sum + bias[column] : sum;
  };
}

// For small tiles, and for all tiles of scaled bf16, D is transposed.  A warp shares 32 columns of
// a box with another.  Of these a thread has the columns at 8 (quad / 2) + 4 (warp % 2) + 2 eight +
// quad % 2, and in them rows 8 j + 2 lane + i: sums[box][4 j + 2 eight + i].  Two 8 x 8
// transpositions give it the four columns at 8 lane + 4 (warp % 2) of row 8 j + quad.
__device__ __forceinline__ int column_in_box(const Place& at) {
  return at.warpgroup * 64 + kColumnsInOrder * (at.warp / 2) + 4 * (at.warp % 2);
}
__device__ __forceinline__ int column_in_four(const Place& at, int eight) {
  return 8 * (at.quad / 2) + 2 * eight + at.quad % 2;
}

// Whether a warp's columns of a box exist.
template <typename Config>
__device__ __forceinline__ bool has_columns(const Args& args,
                                            const Place& at,
                                            const Work& work,
                                            int box) {
  const int in_box = at.warpgroup * 64;
  const int columns = box_columns<Config>(work);
  return in_box < columns && work.column + box * columns + in_box < args.end_column;
}

template <typename Config, int kRows, typename T, typename Apply>
__device__ __forceinline__ void apply_small_columns(const Args& args,
                                                    const T* values,
                                                    int step,
                                                    const Place& at,
                                                    const Work& work,
                                                    float (&sums)[2][kRows / 2],
                                                    const Apply& apply) {
#pragma unroll
  for (int box = 0; box < 2; ++box) {
    if (has_columns<Config>(args, at, work, box)) {
      const T* value = value_of_column(args, values, step, work,
                                       box_column<Config>(args, work, box) + column_in_box(at));
      const float two[2] = {load1(value + column_in_four(at, 0) * step),
                            load1(value + column_in_four(at, 1) * step)};
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        apply(sums[box][i], two[i / 2 % 2]);
      }
    }
  }
}

template <int kRows>
__device__ __forceinline__ void apply_small_rows(const Args& args,
                                                 const Place& at,
                                                 const Work& work,
                                                 float (&sums)[2][kRows / 2]) {
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    const float scale = scale_of_row(args, work, 8 * (i / 2) + 2 * at.lane + i % 2);
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const int of_row = i / 2 * 4 + 2 * eight + i % 2;
      sums[0][of_row] *= scale;
      sums[1][of_row] *= scale;
    }
  }
}

template <typename Config, int kRows>
__device__ __forceinline__ void store_small(const Args& args,
                                            const Place& at,
                                            const Work& work,
                                            const float (&sums)[2][kRows / 2]) {
  using Out = typename Config::Out;
#pragma unroll
  for (int box = 0; box < 2; ++box) {
    if (!has_columns<Config>(args, at, work, box)) {
      continue;
    }
    const int column = box_column<Config>(args, work, box) + column_in_box(at);
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const auto* four = sums[box] + 4 * j;
      if constexpr (std::is_same_v<Out, float>) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = 8 * j + 2 * at.lane + i % 2;
          if (row < work.num_rows) {
            *out_at<Config>(args, work.row + row, column + column_in_four(at, i / 2)) = four[i];
          }
        }
      } else {
        const uint2 words = {ptx::transpose_8x8(narrow_pair(Out{}, four[0], four[1])),
                             ptx::transpose_8x8(narrow_pair(Out{}, four[2], four[3]))};
        const int row = 8 * j + at.quad;
        if (row < work.num_rows) {
          *reinterpret_cast<uint2*>(out_at<Config>(args, work.row + row, column + 8 * at.lane)) =
              words;
        }
      }
    }
  }
}

}  // namespace moebius::cuda::sm90
