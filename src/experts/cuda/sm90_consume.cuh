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
  int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
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
    const uint64_t a = ptx::wgmma_descriptor(ring.a() + at.warpgroup * 64 * kBlockBytes);
    const uint64_t b = ptx::wgmma_descriptor(ring.b());
    ptx::wgmma_pin(sums);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      ptx::Wgmma<kTileColumns>::bf16(sums, a + 2 * step, b + 2 * step, (block | step) != 0);
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

// Of f8e4m3, 128 of K at a time: the tensor core keeps fewer bits than f32 does, so its sums are
// scaled and added up here.  Two halves of the columns, one after the other, for want of registers;
// meanwhile the other warpgroup has the tensor core.
template <typename Config>
__device__ __forceinline__ void multiply_fp8(Ring<Config>& ring,
                                             int blocks,
                                             const Place& at,
                                             float (&sums)[kTileColumns / 2]) {
  const int row = at.warpgroup * 64 + at.warp * 16 + at.quad;
#pragma unroll
  for (int i = 0; i < kTileColumns / 2; ++i) {
    sums[i] = 0.0f;
  }
  for (int block = 0; block < blocks; ++block) {
    ring.await_full();
    const float low = ring.shared.a_scale[ring.stage][row];
    const float high = ring.shared.a_scale[ring.stage][row + 8];
    const float scale[2] = {ring.shared.b_scale[ring.stage][0], ring.shared.b_scale[ring.stage][1]};
    const uint64_t a = ptx::wgmma_descriptor(ring.a() + at.warpgroup * 64 * kBlockBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t b = ptx::wgmma_descriptor(ring.b() + half * kScaleBlock * kBlockBytes);
      float products[kScaleBlock / 2];
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::Wgmma<kScaleBlock>::e4m3(products, a + 2 * step, b + 2 * step, step != 0);
      }
      ptx::wgmma_commit();
      const float of_low = low * scale[half];
      const float of_high = high * scale[half];
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(products);
      if (half == 1) {
        ring.release(ring.stage);
      }
#pragma unroll
      for (int i = 0; i < kScaleBlock / 2; ++i) {
        float& sum = sums[half * kScaleBlock / 2 + i];
        sum = __fmaf_rn(products[i], (i & 2) == 0 ? of_low : of_high, sum);
      }
    }
    ring.advance();
  }
}

__device__ __forceinline__ void add_bias(const Args& args,
                                         const Place& at,
                                         const Work& work,
                                         float (&sums)[kTileColumns / 2]) {
  const float* bias = args.bias + int64_t{work.group} * args.n + work.column + 2 * at.lane;
#pragma unroll
  for (int j = 0; j < kTileColumns / 8; ++j) {
    if (work.column + 8 * j < args.n) {
      const float2 two = *reinterpret_cast<const float2*>(bias + 8 * j);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums[4 * j + 2 * half] += two.x;
        sums[4 * j + 2 * half + 1] += two.y;
      }
    }
  }
}

// Four lanes of a row store 32 bytes in a row.
__device__ __forceinline__ void store_f32(const Args& args,
                                          const Place& at,
                                          const Work& work,
                                          const float (&sums)[kTileColumns / 2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = at.warpgroup * 64 + at.warp * 16 + 8 * half + at.quad;
#pragma unroll
    for (int j = 0; j < kTileColumns / 8; ++j) {
      const int column = work.column + 8 * j;
      if (row < work.num_rows && column < args.n) {
        *reinterpret_cast<float2*>(out_at<float>(args, work.row + row, column + 2 * at.lane)) = {
            sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]};
      }
    }
  }
}

// words[b] of lane l is what lane l has of block b; after it lane l has block l, in order of lanes.
__device__ __forceinline__ void transpose_in_quad(uint32_t (&words)[4], int lane) {
  const bool odd = (lane & 1) != 0;
  const bool upper = (lane & 2) != 0;
  uint32_t even_block[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t kept = odd ? words[2 * i + 1] : words[2 * i];
    const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? words[2 * i] : words[2 * i + 1], 1);
    words[2 * i] = odd ? got : kept;
    words[2 * i + 1] = odd ? kept : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    even_block[i] = __shfl_xor_sync(0xffffffffu, upper ? words[i] : words[2 + i], 2);
  }
  const uint32_t own[2] = {upper ? words[2] : words[0], upper ? words[3] : words[1]};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    words[i] = upper ? even_block[i] : own[i];
    words[2 + i] = upper ? own[i] : even_block[i];
  }
}

template <typename Out>
__device__ __forceinline__ void store_16_bits(const Args& args,
                                              const Place& at,
                                              const Work& work,
                                              const float (&sums)[kTileColumns / 2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = at.warpgroup * 64 + at.warp * 16 + 8 * half + at.quad;
    // Four lanes of a row store 64 bytes in a row.
#pragma unroll
    for (int four = 0; four < kTileColumns / 32; ++four) {
      uint32_t words[4];
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const int i = 4 * (4 * four + b) + 2 * half;
        words[b] = narrow_pair(Out{}, sums[i], sums[i + 1]);
      }
      transpose_in_quad(words, at.lane);
      const int column = work.column + 32 * four + 8 * at.lane;
      if (row < work.num_rows && column < args.n) {
        *reinterpret_cast<uint4*>(out_at<Out>(args, work.row + row, column)) = {words[0], words[1],
                                                                                words[2], words[3]};
      }
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
        scale[i] = ring.shared.a_scale[ring.stage][8 * (i / 2) + 2 * at.lane + i % 2] *
                   ring.shared.b_scale[ring.stage][at.warpgroup];
      }
    }
    const uint64_t rows = ptx::wgmma_descriptor(ring.a());
    const uint8_t* weights = ring.b() + at.warpgroup * 128 * kBlockBytes;
    if constexpr (Config::kIsFp8) {
      float products[2][kSums];
      ptx::wgmma_fence();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint64_t columns = ptx::wgmma_descriptor(weights + half * 64 * kBlockBytes);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          ptx::Wgmma<kRows>::e4m3(products[half], columns + 2 * step, rows + 2 * step, step != 0);
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
        const uint64_t columns = ptx::wgmma_descriptor(weights + half * 64 * kBlockBytes);
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          ptx::Wgmma<kRows>::bf16(sums[half], columns + 2 * step, rows + 2 * step, true);
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
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
      const int column = work.column + at.warpgroup * 128 + half * 64 + at.warp * 16 + 8 * eight;
      const bool exists = column < args.n;
      const float bias = args.bias != nullptr && exists
                             ? args.bias[int64_t{work.group} * args.n + column + at.quad]
                             : 0.0f;
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
        float two[2] = {sums[half][4 * j + 2 * eight], sums[half][4 * j + 2 * eight + 1]};
        if (args.bias != nullptr) {
          two[0] += bias;
          two[1] += bias;
        }
        if constexpr (std::is_same_v<Out, float>) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int row = 8 * j + 2 * at.lane + i;
            if (exists && row < work.num_rows) {
              *out_at<float>(args, work.row + row, column + at.quad) = two[i];
            }
          }
        } else {
          const uint32_t pair = ptx::transpose_8x8(narrow_pair(Out{}, two[0], two[1]));
          const int row = 8 * j + at.quad;
          if (exists && row < work.num_rows) {
            *reinterpret_cast<uint32_t*>(out_at<Out>(args, work.row + row, column + 2 * at.lane)) =
                pair;
          }
        }
      }
    }
  }
}

// The warps of both consumer warpgroups.
template <typename Config>
__device__ __forceinline__ void consume(const Args& args, Shared<Config>& shared) {
  Ring<Config> ring{shared};
  const Place at;
  const int blocks = num_blocks<Config>(args);
  while (true) {
    ring.await_full();
    const Work work = shared.work[ring.stage];
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
    if constexpr (std::is_same_v<typename Config::Out, float>) {
      store_f32(args, at, work, sums);
    } else {
      store_16_bits<typename Config::Out>(args, at, work, sums);
    }
  }
}

}  // namespace moebius::cuda::sm90
