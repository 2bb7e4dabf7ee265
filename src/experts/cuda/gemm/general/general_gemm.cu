// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A grouped GEMM of any operands by f32 multiply-adds.  Blocks walk over output tiles of kTile x
// kTile.  A tile's operands are decoded to f32 in shared memory, kDepth columns at a time, and a
// thread owns kOwn x kOwn elements.  Sums run over k in order, whatever the tile.
#include <algorithm>
#include <string>

#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/gemm/tile_walk.cuh"
#include "experts/cuda/gemm/weight_values.cuh"

namespace moebius::cuda {

namespace {

constexpr int kTile = 64;
constexpr int kDepth = 16;
constexpr int kOwn = 4;
constexpr int kThreads = (kTile / kOwn) * (kTile / kOwn);
static_assert(kThreads * kPack == kTile * kDepth, "a thread decodes one pack of each operand");

__global__ void __launch_bounds__(kThreads)
    general_gemm_kernel(const __grid_constant__ GemmArgs p) {
  __shared__ TileStarts starts;
  __shared__ float a_tile[kDepth][kTile + 1];
  __shared__ float w_tile[kDepth][kTile + 1];
  find_tiles<kThreads>(p.rows, kTile, starts);

  const int tiles_across = (p.n + kTile - 1) / kTile;
  const int num_tiles = starts.before[p.rows.num_groups] * tiles_across;
  const int own_row = static_cast<int>(threadIdx.x) / (kTile / kOwn) * kOwn;
  const int own_col = static_cast<int>(threadIdx.x) % (kTile / kOwn) * kOwn;
  const int load_row = static_cast<int>(threadIdx.x) / (kDepth / kPack);
  const int load_k = static_cast<int>(threadIdx.x) % (kDepth / kPack) * kPack;

  for (int tile = static_cast<int>(blockIdx.x); tile < num_tiles;
       tile += static_cast<int>(gridDim.x)) {
    const TilePlace place = find_tile(p.rows, starts, tile / tiles_across, kTile);
    const int g = place.group;
    const int first_col = tile % tiles_across * kTile;
    const int64_t a_row = place.begin + load_row;
    const int w_row = first_col + load_row;
    float sums[kOwn][kOwn] = {};
    for (int k = 0; k < p.k; k += kDepth) {
      float w[kPack] = {};
      if (w_row < p.n) {
        weight_pack(p.w, g, w_row, p.n, k + load_k, p.k, w);
      }
      __syncthreads();  // all threads have read the last step's tiles
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const int at = k + load_k + i;
        a_tile[load_k + i][load_row] =
            a_row < place.end && at < p.k ? row_value(p.a, a_row, g, at, p.k) : 0.0f;
        w_tile[load_k + i][load_row] = w[i];
      }
      __syncthreads();
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
#pragma unroll
          for (int j = 0; j < kOwn; ++j) {
            sums[i][j] = fmaf(a_tile[d][own_row + i], w_tile[d][own_col + j], sums[i][j]);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int64_t row = place.begin + own_row + i;
      for (int j = 0; j < kOwn && row < place.end; ++j) {
        const int col = first_col + own_col + j;
        if (col < p.n) {
          const float bias = p.bias != nullptr ? p.bias[int64_t{g} * p.n + col] : 0.0f;
          const float value = p.bias != nullptr ? sums[i][j] + bias : sums[i][j];
          quant::device::store_element(p.out, p.out_dtype, row * p.n + col, value);
        }
      }
    }
  }
}

}  // namespace

void general_gemm(const ExpertGemm& gemm, const Stream& on) {
  const int index = on.device().index;
  const DeviceGuard guard(index);
  const GemmArgs args = gemm_args(gemm);
  const int64_t most =
      most_tiles(gemm.rows, gemm.out.dim(0), kTile) * ((args.n + kTile - 1) / kTile);
  constexpr int64_t kBlocksPerSm = 4;
  const int64_t blocks = std::min(most, blocks_of(gemm, kBlocksPerSm, index));
  general_gemm_kernel<<<static_cast<unsigned>(blocks), kThreads, 0,
                        as_stream(on.native_handle())>>>(args);
  check_launch("general_gemm_kernel");
}

}  // namespace moebius::cuda
