// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The warpgroups that multiply what is in the stages of the grouped GEMM's kernel.
#pragma once

#include <type_traits>

#include "core/cuda/floats.cuh"
#include "core/cuda/wgmma.cuh"
#include "experts/cuda/sm90_shared.cuh"

namespace moebius::cuda::sm90 {

// Where a consumer thread stands: rows and columns of D as wgmma.cuh has them.
struct Place {
  int warpgroup = ptx::uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  int warp = static_cast<int>(threadIdx.x) % kWarpgroup / kWarp;
  int quad = static_cast<int>(threadIdx.x) % kWarp / 4;
  int lane = static_cast<int>(threadIdx.x) % 4;  // in the quad
};

template <typename T>
__device__ __forceinline__ T* out_at(const Args& args, int row, int column) {
  return static_cast<T*>(args.out) + int64_t{row} * args.n + column;
}

// sums[4 j + i] of 64 rows per warpgroup, 256 columns.
template <typename Config>
__device__ __forceinline__ void multiply_bf16(Ring<Config>& ring,
                                              int blocks,
                                              const Place& at,
                                              float (&sums)[kTileColumns / 2]) {
  int before = 0;
  for (int block = 0; block < blocks; ++block) {
    ring.await_full();
    const uint32_t a = ptx::wgmma_descriptor_low(ring.a() + at.warpgroup * 64 * kBlockBytes);
    const uint32_t b = ptx::wgmma_descriptor_low(ring.b());
    ptx::wgmma_pin(sums);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ptx::Wgmma<kTileColumns>::bf16(sums, ptx::wgmma_descriptor(a + 2 * step),
                                     ptx::wgmma_descriptor(b + 2 * step), (block | step) != 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (block > 0) {
      ring.release(before);
    }
    before = ring.stage;
    ring.advance();
  }
  ptx::wgmma_wait<0>();
  ptx::wgmma_pin(sums);
  ring.release(before);
}

// What a thread needs of a stage of f8e4m3.
struct Fp8Stage {
  uint32_t a;  // low words of descriptors
  uint32_t b;
  float a_scale[2];  // of its rows
  float b_scale[2];  // of either half of the columns

  template <typename Config>
  __device__ __forceinline__ Fp8Stage(const Ring<Config>& ring, const Place& at) {
    const int row = at.warpgroup * 64 + at.warp * 16 + at.quad;
    ring.await_full();
    a = ptx::wgmma_descriptor_low(ring.a() + at.warpgroup * 64 * kBlockBytes);
    b = ptx::wgmma_descriptor_low(ring.b());
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a_scale[i] = ring.a_scale(row + 8 * i);
      b_scale[i] = ring.b_scale(i);
    }
  }
};

// Of f8e4m3, 128 of K at a time: the tensor core keeps fewer bits than f32 does, so its sums are
// scaled and added up here.  Two halves of the columns, one after the other, for want of registers;
// meanwhile the other warpgroup has the tensor core.  Why the next stage is looked at while the
// tensor core works: what is left between two products then takes less time than the products of
// the other.
template <typename Config>
__device__ __forceinline__ void multiply_fp8(Ring<Config>& ring,
                                             int blocks,
                                             const Place& at,
                                             float (&sums)[kTileColumns / 2]) {
  constexpr int kHalf = kScaleBlock * kBlockBytes / 16;  // as descriptors count
#pragma unroll
  for (int i = 0; i < kTileColumns / 2; ++i) {
    sums[i] = 0.0f;
  }
  Fp8Stage next(ring, at);
  for (int block = 0; block < blocks; ++block) {
    const Fp8Stage stage = next;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float products[kScaleBlock / 2];
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::Wgmma<kScaleBlock>::e4m3(products, ptx::wgmma_descriptor(stage.a + 2 * step),
                                      ptx::wgmma_descriptor(stage.b + half * kHalf + 2 * step),
                                      step != 0);
      }
      ptx::wgmma_commit();
      const float scales[2] = {stage.a_scale[0] * stage.b_scale[half],
                               stage.a_scale[1] * stage.b_scale[half]};
      const int in_use = ring.stage;
      if (half == 1) {
        ring.advance();
        if (block + 1 < blocks) {
          next = Fp8Stage(ring, at);
        }
      }
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(products);
      if (half == 1) {
        ring.release(in_use);
      }
#pragma unroll
      for (int i = 0; i < kScaleBlock / 2; ++i) {
        float& sum = sums[half * kScaleBlock / 2 + i];
        sum = __fmaf_rn(products[i], scales[i / 2 % 2], sum);
      }
    }
  }
}

// What a thread has of 32 columns of either of its rows are eight neighbours, see kColumnsInOrder:
// the column of the first, and the sums.
__device__ __forceinline__ int first_column(const Place& at, const Work& work, int block) {
  return work.column + kColumnsInOrder * block + 8 * at.lane;
}
template <typename Sums>
__device__ __forceinline__ auto& sum_of(Sums& sums, int block, int half, int i) {
  return sums[4 * (4 * block + i / 2) + 2 * half + i % 2];
}
inline constexpr int kColumnBlocks = kTileColumns / kColumnsInOrder;

__device__ __forceinline__ void add_bias(const Args& args,
                                         const Place& at,
                                         const Work& work,
                                         float (&sums)[kTileColumns / 2]) {
#pragma unroll
  for (int block = 0; block < kColumnBlocks; ++block) {
    const int column = first_column(at, work, block);
    if (column < args.n) {
      const float* bias = args.bias + int64_t{work.group} * args.n + column;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sum_of(sums, block, 0, i) += bias[i];
        sum_of(sums, block, 1, i) += bias[i];
      }
    }
  }
}

__device__ __forceinline__ void store_eight(float* to, const float (&sums)[8]) {
  auto* fours = reinterpret_cast<float4*>(to);
  fours[0] = {sums[0], sums[1], sums[2], sums[3]};
  fours[1] = {sums[4], sums[5], sums[6], sums[7]};
}
template <typename Out>
__device__ __forceinline__ void store_eight(Out* to, const float (&sums)[8]) {
  *reinterpret_cast<uint4*>(to) = {
      narrow_pair(Out{}, sums[0], sums[1]), narrow_pair(Out{}, sums[2], sums[3]),
      narrow_pair(Out{}, sums[4], sums[5]), narrow_pair(Out{}, sums[6], sums[7])};
}

// Four lanes store a row's 32 columns.
template <typename Out>
__device__ __forceinline__ void store(const Args& args,
                                      const Place& at,
                                      const Work& work,
                                      const float (&sums)[kTileColumns / 2]) {
  const int blocks = (args.n - work.column) / kColumnsInOrder;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = at.warpgroup * 64 + at.warp * 16 + 8 * half + at.quad;
    if (row < work.num_rows) {
      Out* to = out_at<Out>(args, work.row + row, first_column(at, work, 0));
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
        if (block < blocks) {
          float eight[8];
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            eight[i] = sum_of(sums, block, half, i);
          }
          store_eight(to + kColumnsInOrder * block, eight);
        }
      }
    }
  }
}

// Of a small tile, D transposed: a thread has, of the 32 columns of out that its warp shares with
// another, the ones at 16 (warp % 2) + 8 eight + quad, and of them rows of out 8 j + 2 lane + i.
template <typename Out>
__device__ __forceinline__ void store_columns(const Args& args,
                                              const Place& at,
                                              const Work& work,
                                              int column,
                                              const float (&two)[2][2],
                                              int j) {
  if constexpr (std::is_same_v<Out, float>) {
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = 8 * j + 2 * at.lane + i;
        if (row < work.num_rows) {
          *out_at<float>(args, work.row + row,
                         column + 8 * (at.quad / 2) + 2 * eight + at.quad % 2) = two[eight][i];
        }
      }
    }
  } else {
    const uint2 four = {ptx::transpose_8x8(narrow_pair(Out{}, two[0][0], two[0][1])),
                        ptx::transpose_8x8(narrow_pair(Out{}, two[1][0], two[1][1]))};
    const int row = 8 * j + at.quad;
    if (row < work.num_rows) {
      *reinterpret_cast<uint2*>(out_at<Out>(args, work.row + row, column + 8 * at.lane)) = four;
    }
  }
}

template <int kRows, typename Out>
__device__ __forceinline__ void store_small(const Args& args,
                                            const Place& at,
                                            const Work& work,
                                            const float (&sums)[2][kRows / 2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // Of the 32 columns: 2 j + i of each eight, j being 2 (warp % 2) + eight.
    const int column = work.column + at.warpgroup * 128 + half * 64 +
                       kColumnsInOrder * (at.warp / 2) + 4 * (at.warp % 2);
    if (column >= args.n) {
      continue;
    }
    float bias[2] = {0.0f, 0.0f};
    if (args.bias != nullptr) {
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
        bias[eight] = args.bias[int64_t{work.group} * args.n + column + 8 * (at.quad / 2) +
                                2 * eight + at.quad % 2];
      }
    }
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      float two[2][2];
#pragma unroll
      for (int eight = 0; eight < 2; ++eight) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          two[eight][i] = sums[half][4 * j + 2 * eight + i];
          if (args.bias != nullptr) {
            two[eight][i] += bias[eight];
          }
        }
      }
      store_columns<Out>(args, at, work, column, two, j);
    }
  }
}

// A small tile: D is [columns of out, rows of out], 128 columns per warpgroup in two halves.
template <typename Config, int kRows>
__device__ __forceinline__ void small_tile(
    const Args& args, Ring<Config>& ring, int blocks, const Place& at, const Work& work) {
  using Out = typename Config::Out;
  constexpr int kSums = kRows / 2;
  float sums[2][kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    sums[0][i] = 0.0f;
    sums[1][i] = 0.0f;
  }
  for (int block = 0; block < blocks; ++block) {
    ring.await_full();
    [[maybe_unused]] float scale[kRows / 4];  // of the rows that this thread has columns of D of
    if constexpr (Config::kIsFp8) {
#pragma unroll
      for (int i = 0; i < kRows / 4; ++i) {
        scale[i] = ring.a_scale(8 * (i / 2) + 2 * at.lane + i % 2) * ring.b_scale(at.warpgroup);
      }
    }
    const uint32_t rows = ptx::wgmma_descriptor_low(ring.a());
    const uint32_t weights = ring.b() + at.warpgroup * 128 * kBlockBytes;
    if constexpr (Config::kIsFp8) {
      float products[2][kSums];
      ptx::wgmma_fence();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t columns = ptx::wgmma_descriptor_low(weights + half * 64 * kBlockBytes);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          ptx::Wgmma<kRows>::e4m3(products[half], ptx::wgmma_descriptor(columns + 2 * step),
                                  ptx::wgmma_descriptor(rows + 2 * step), step != 0);
        }
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(products[0]);
      ptx::wgmma_pin(products[1]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          sums[half][i] = __fmaf_rn(products[half][i], scale[i / 4 * 2 + i % 2], sums[half][i]);
        }
      }
    } else {
      ptx::wgmma_pin(sums[0]);
      ptx::wgmma_pin(sums[1]);
      ptx::wgmma_fence();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t columns = ptx::wgmma_descriptor_low(weights + half * 64 * kBlockBytes);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          ptx::Wgmma<kRows>::bf16(sums[half], ptx::wgmma_descriptor(columns + 2 * step),
                                  ptx::wgmma_descriptor(rows + 2 * step), true);
        }
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(sums[0]);
      ptx::wgmma_pin(sums[1]);
    }
    ring.release(ring.stage);
    ring.advance();
  }
  store_small<kRows, Out>(args, at, work, sums);
}

// The warps of both consumer warpgroups.
template <typename Config>
__device__ __forceinline__ void consume(const Args& args, Shared<Config>& shared) {
  Ring<Config> ring(shared);
  const Place at;
  const int blocks = num_blocks<Config>(args);
  while (true) {
    ring.await_full();
    const Work& told = shared.work[ring.stage];
    const Work work{ptx::uniform(told.group), ptx::uniform(told.row), ptx::uniform(told.num_rows),
                    ptx::uniform(told.column), ptx::uniform(told.is_small)};
    if (work.num_rows == 0) {
      break;
    }
    if (work.is_small != 0) {
      if (work.num_rows <= kBoxRowsA) {
        small_tile<Config, kBoxRowsA>(args, ring, blocks, at, work);
      } else {
        small_tile<Config, kSmallRows>(args, ring, blocks, at, work);
      }
      continue;
    }
    float sums[kTileColumns / 2];
    if constexpr (Config::kIsFp8) {
      multiply_fp8(ring, blocks, at, sums);
    } else {
      multiply_bf16(ring, blocks, at, sums);
    }
    if (args.bias != nullptr) {
      add_bias(args, at, work, sums);
    }
    store<typename Config::Out>(args, at, work, sums);
  }
}

}  // namespace moebius::cuda::sm90
