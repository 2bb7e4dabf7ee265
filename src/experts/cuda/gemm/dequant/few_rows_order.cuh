// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows of activations in the order of k in which few_rows_gemm.cu decodes codes.  GEMM2's rows can
// be activated on the way.
#pragma once

#include "experts/cuda/activation/activation.cuh"
#include "experts/cuda/gemm/dequant/few_rows_decode.cuh"
#include "experts/cuda/gemm/dequant/few_rows_launch.cuh"
#include "experts/cuda/gemm/dequant/few_rows_stages.cuh"

namespace moebius::cuda::few_rows {

// Returns what the other thread of a pair of neighbours passes; `pair` is their mask.
__device__ __forceinline__ uint4 exchanged(uint32_t pair, const uint4& v) {
  return make_uint4(__shfl_xor_sync(pair, v.x, 1), __shfl_xor_sync(pair, v.y, 1),
                    __shfl_xor_sync(pair, v.z, 1), __shfl_xor_sync(pair, v.w, 1));
}

// A thread takes a slab of a row at a time, and stores it to that row of `out`, or, by row_of_slot,
// a slab of a token to all rows that it becomes.  Two neighbours exchange halves, so that they
// store whole sectors of 32 bytes: rows of `out` follow each other without gaps, and have an even
// number of slabs.
// kByChunks: see is_by_chunks().  T: BFloat16 or Float16.
template <Code kCode, bool kByChunks, typename T, Activates kActivates>
__global__ void __launch_bounds__(kOrderThreads)
    order_rows_kernel(const __grid_constant__ OrderArgs p) {
  using S = Step<kCode, 16>;
  ptx::await_kernel_before();
  ptx::let_next_begin();
  const bool is_by_token = kActivates == Activates::kNo && p.row_of_slot != nullptr;
  const RowSpan span =
      is_by_token ? RowSpan{0, p.num_tokens} : span_rows(p.x.rows, static_cast<int>(blockIdx.y));
  // Why 32 bits do: 2^32 slabs take 256 GiB.
  const auto slabs = static_cast<uint32_t>(p.padded / kSlab);
  const uint32_t num = static_cast<uint32_t>(span.end - span.begin) * slabs;
  const uint32_t odd = threadIdx.x % 2;
  const uint32_t pair = 3u << (threadIdx.x % kWarp - odd);
  for (uint32_t i = blockIdx.x * kOrderThreads + threadIdx.x; i < num;
       i += gridDim.x * kOrderThreads) {
    const int64_t row = span.begin + i / slabs;
    const auto slab = i % slabs;
    const int64_t from = p.index != nullptr && !is_by_token ? p.index[row] : row;
    const auto* in = static_cast<const T*>(p.x.in) + from * p.x.in_width;
    uint4 eights[4];
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      const auto k =
          static_cast<int>(kByChunks ? (slab / 4 * 16 + j * 4 + slab % 4) * 8 : (slab * 4 + j) * 8);
      eights[j] = k < p.x.width ? load_activated<kActivates>(p.x, in, k).words[0] : uint4{};
    }
    uint4 own[4];  // of the lanes of a quad
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (S::kWords == 1) {
        own[j] = in_order_of<kCode>(eights[j]);
      } else {
        // Codes of 8 bits: lane j has words j of both chunks of a slab, each of four codes.
        const uint4& a = eights[j / 2];
        const uint4& b = eights[2 + j / 2];
        own[j] = in_order_of<kCode>(j % 2 == 0 ? make_uint4(a.x, a.y, b.x, b.y)
                                               : make_uint4(a.z, a.w, b.z, b.w));
      }
    }
    const uint4 quarters[4] = {make_uint4(own[0].x, own[1].x, own[2].x, own[3].x),
                               make_uint4(own[0].y, own[1].y, own[2].y, own[3].y),
                               make_uint4(own[0].z, own[1].z, own[2].z, own[3].z),
                               make_uint4(own[0].w, own[1].w, own[2].w, own[3].w)};
    uint4 halves[2][2];  // of both slabs
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4& even_quarter = quarters[2 * half];
      const uint4& odd_quarter = quarters[2 * half + 1];
      const uint4 other = exchanged(pair, odd != 0 ? even_quarter : odd_quarter);
      halves[0][half] = odd != 0 ? other : even_quarter;
      halves[1][half] = odd != 0 ? odd_quarter : other;
    }
    const auto store = [&](int64_t to) {
      uint4* out = static_cast<uint4*>(p.x.out) + (to * slabs + slab - odd) * 4 + odd;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        out[2 * j] = halves[j / 2][j % 2];
      }
    };
    if constexpr (kActivates == Activates::kNo) {
#pragma unroll 4
      for (int j = 0; is_by_token && j < p.topk; ++j) {
        const int32_t to = p.row_of_slot[row * p.topk + j];
        if (to >= 0) {
          store(to);
        }
      }
    }
    if (!is_by_token) {
      store(row);
    }
  }
}

}  // namespace moebius::cuda::few_rows
