// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How the grouped GEMM's kernel stores rows where it activates: silu(gate) * up of the 128 columns
// of either box.  For f8e4m3 by blocks they are quantized with the scale of those 128, and for
// other f8e4m3 with a given scale.  The result has the bits of activate() or activate_to_codes() of
// the sums rounded to bf16, or of RowCoder::encode() after activate().
#pragma once

#include "experts/cuda/activation/activation.cuh"
#include "experts/cuda/gemm/sm90/store.cuh"
#include "quant/cuda/elements.cuh"
#include "quant/group_rule.h"

namespace moebius::cuda::sm90 {

__device__ __forceinline__ quant::GroupCode code_of_row(const Args& args, float largest) {
  QuantizeSpec spec;
  spec.format = QuantFormat::kFp8;
  spec.group = {1, kScaleBlock};
  spec.power_of_two_scale = args.power_of_two_scale;
  return quant::group_code(spec, {0.0f, largest}, 0.0f);
}

__device__ __forceinline__ uint32_t codes_of_four(uint2 four, const quant::device::Factor& factor) {
  const float2 low = widen_pair(BFloat16{}, four.x);
  const float2 high = widen_pair(BFloat16{}, four.y);
  const float x[4] = {low.x, low.y, high.x, high.y};
  return static_cast<uint32_t>(quant::device::encode_narrow_e4m3(x, factor));
}

// The reciprocal of the scale that codes of a tile's group are given.
__device__ __forceinline__ float given_factor(const Args& args, const Work& work) {
  return 1.0f / args.out_scale[work.group * args.out_scale_step];
}
// The codes of quant::Encode::kE4M3Multiply.
template <int kCount>
__device__ __forceinline__ uint64_t codes_by_factor(const float (&x)[kCount], float factor) {
  uint64_t codes = 0;
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const uint32_t pair = quant::device::e4m3_pair(fminf(x[i] * factor, kE4M3Max),
                                                   fminf(x[i + 1] * factor, kE4M3Max));
    codes |= static_cast<uint64_t>(pair) << (8 * i);
  }
  return codes;
}

// The largest magnitude of four bf16; NaN is passed over.
__device__ __forceinline__ float absmax(uint2 four) {
  constexpr uint32_t kMagnitudes = 0x7fff7fffu;
  const float2 max =
      widen_pair(BFloat16{}, max_pair(BFloat16{}, four.x & kMagnitudes, four.y & kMagnitudes));
  return fmaxf(fmaxf(max.x, max.y), 0.0f);
}
__device__ __forceinline__ float largest_of_quad(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

__device__ __forceinline__ float* out_scale_at(const Args& args, int row, const Work& work) {
  return args.out_scale + (int64_t{row} * (args.n / kTileColumns) + work.column / kTileColumns);
}

// Stores both rows of a thread at once, so that neither waits for the other's latencies.
template <typename Config>
__device__ __forceinline__ void store_activated(const Args& args,
                                                const Place& at,
                                                const Work& work,
                                                const float (&sums)[kTileColumns / 2]) {
  if (work.column >= args.n) {
    return;
  }
  Raw8<BFloat16> values[2][kBoxBlocks];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto pair = [&](int block, int i) {
      return narrow_pair(BFloat16{}, sum_of(sums, block, half, i),
                         sum_of(sums, block, half, i + 1));
    };
#pragma unroll
    for (int block = 0; block < kBoxBlocks; ++block) {
      const auto activated = [&](int i) {
        return silu_pair<BFloat16>(pair(block, i), pair(block + kBoxBlocks, i));
      };
      values[half][block].words[0] =
          make_uint4(activated(0), activated(2), activated(4), activated(6));
    }
  }
  [[maybe_unused]] quant::GroupCode codes[2];
  [[maybe_unused]] float given = 0.0f;
  if constexpr (Config::kQuantizes && !Config::kFindsScales) {
    given = given_factor(args, work);
  }
  if constexpr (Config::kFindsScales) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = 0.0f;
#pragma unroll
      for (int block = 0; block < kBoxBlocks; ++block) {
        largest = fmaxf(largest, absmax(values[half][block]));
      }
      codes[half] = code_of_row(args, largest_of_quad(largest));
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = row_in_tile(at, half);
    if (row >= work.num_rows) {
      continue;
    }
    auto* to = out_at<Config>(args, work.row + row, work.column / 2 + 8 * at.lane);
    if constexpr (Config::kQuantizes) {
      [[maybe_unused]] const auto factor = quant::device::make_factor(codes[half].factor, 0.0f);
      if (Config::kFindsScales && at.lane == 0) {
        *out_scale_at(args, work.row + row, work) = codes[half].scale;
      }
#pragma unroll
      for (int block = 0; block < kBoxBlocks; ++block) {
        float eight[kVector];
        widen(values[half][block], eight);
        uint64_t of_eight = 0;
        if constexpr (Config::kFindsScales) {
          of_eight = quant::device::encode_narrow_e4m3(eight, factor);
        } else {
          of_eight = codes_by_factor(eight, given);
        }
        quant::device::store_codes(
            quant::Code::kE4M3, reinterpret_cast<uint8_t*>(to + kColumnsInOrder * block), of_eight);
      }
    } else {
#pragma unroll
      for (int block = 0; block < kBoxBlocks; ++block) {
        *reinterpret_cast<uint4*>(to + kColumnsInOrder * block) = values[half][block].words[0];
      }
    }
  }
}

// REQUIRES: no warp still uses row_max, and the tile has columns.
template <typename Config, int kRows, int kRoom>
__device__ __forceinline__ void store_small_activated(const Args& args,
                                                      const Place& at,
                                                      const Work& work,
                                                      const float (&sums)[2][kRows / 2],
                                                      float (&row_max)[kRoom][kConsumerWarps]) {
  uint2 fours[kRows / 8];
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
    const auto activated = [&](int i) {
      const auto pair = [&](int box) {
        return narrow_pair(BFloat16{}, sums[box][4 * j + i], sums[box][4 * j + i + 1]);
      };
      return ptx::transpose_8x8(silu_pair<BFloat16>(pair(0), pair(1)));
    };
    fours[j] = {activated(0), activated(2)};
  }
  auto* to =
      out_at<Config>(args, work.row + at.quad, work.column / 2 + column_in_box(at) + 8 * at.lane);
  const int64_t step = int64_t{8} * out_width<Config>(args);
  if constexpr (!Config::kQuantizes) {
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      if (8 * j + at.quad < work.num_rows) {
        *reinterpret_cast<uint2*>(to + j * step) = fours[j];
      }
    }
  } else if constexpr (!Config::kFindsScales) {
    const float given = given_factor(args, work);
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      if (8 * j + at.quad < work.num_rows) {
        const float2 low = widen_pair(BFloat16{}, fours[j].x);
        const float2 high = widen_pair(BFloat16{}, fours[j].y);
        const float x[4] = {low.x, low.y, high.x, high.y};
        *reinterpret_cast<uint32_t*>(to + j * step) =
            static_cast<uint32_t>(codes_by_factor(x, given));
      }
    }
  } else {
    const int warp = at.consumer_warp();
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float largest = largest_of_quad(absmax(fours[j]));
      if (at.lane == 0) {
        row_max[8 * j + at.quad][warp] = largest;
      }
    }
    ptx::barrier_sync<kConsumers * kWarpgroup>(1);
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const int row = 8 * j + at.quad;
      float largest = 0.0f;
#pragma unroll
      for (const float of_warp : row_max[row]) {
        largest = fmaxf(largest, of_warp);
      }
      const quant::GroupCode code = code_of_row(args, largest);
      const auto factor = quant::device::make_factor(code.factor, 0.0f);
      if (row < work.num_rows) {
        if (warp == 0 && at.lane == 0) {
          *out_scale_at(args, work.row + row, work) = code.scale;
        }
        *reinterpret_cast<uint32_t*>(to + j * step) = codes_of_four(fours[j], factor);
      }
    }
  }
}

}  // namespace moebius::cuda::sm90
