// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows of activations in the order of k in which few_rows_gemm.cu decodes codes.
#pragma once

#include "experts/cuda/gemm/dequant/few_rows_decode.cuh"
#include "experts/cuda/gemm/dequant/few_rows_stages.cuh"

namespace moebius::cuda::few_rows {

struct OrderArgs {
  RowGroups rows;
  const uint8_t* in;     // rows of K
  const int32_t* index;  // row r is in[index[r]]; nullptr: in[r]
  uint8_t* out;          // [M, padded]
  int k;
  int padded;  // a multiple of the k of a step
};

inline constexpr int kOrderThreads = 256;

// A thread takes a slab of a row at a time.
template <Code kCode>
__global__ void __launch_bounds__(kOrderThreads)
    order_rows_kernel(const __grid_constant__ OrderArgs p) {
  using S = Step<kCode, 16>;
  ptx::await_kernel_before();
  ptx::let_next_begin();
  const RowSpan span = span_rows(p.rows, static_cast<int>(blockIdx.y));
  const int slabs = p.padded / kSlab;
  const int64_t num = (span.end - span.begin) * slabs;
  for (int64_t i = int64_t{blockIdx.x} * kOrderThreads + threadIdx.x; i < num;
       i += int64_t{gridDim.x} * kOrderThreads) {
    const int64_t row = span.begin + i / slabs;
    const int slab = static_cast<int>(i % slabs);
    const int64_t from = p.index != nullptr ? p.index[row] : row;
    const auto* in = reinterpret_cast<const uint4*>(p.in + from * p.k * 2);
    uint4 eights[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int k = S::kByChunks ? (slab / 4 * 16 + j * 4 + slab % 4) * 8 : (slab * 4 + j) * 8;
      eights[j] = k < p.k ? in[k / 8] : uint4{};
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
    auto* out = reinterpret_cast<uint4*>(p.out + row * p.padded * 2) + slab * 4;
    out[0] = make_uint4(own[0].x, own[1].x, own[2].x, own[3].x);
    out[1] = make_uint4(own[0].y, own[1].y, own[2].y, own[3].y);
    out[2] = make_uint4(own[0].z, own[1].z, own[2].z, own[3].z);
    out[3] = make_uint4(own[0].w, own[1].w, own[2].w, own[3].w);
  }
}

}  // namespace moebius::cuda::few_rows
