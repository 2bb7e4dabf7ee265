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

// Brings slabs of a row into their order, by a warp.  It loads and stores neighbours, so that whole
// lines of memory move, and exchanges words in between through shared memory: a slab has four
// eights, and its quarters have a word of each.
// kByChunks: see is_by_chunks().
template <Code kCode, bool kByChunks>
class OrderedSlabs {
 public:
  static constexpr int kEights = kSlab / kEight;  // of a slab, which has as many quarters

  // `pieces` has room for kOrderPieces, and is the warp's own.
  __device__ __forceinline__ explicit OrderedSlabs(uint4* pieces) : pieces_(pieces) {}

  // Takes the eight elements of the row that begin at 8 * i.
  __device__ __forceinline__ void put(int i, const uint4& eight) {
    const int slab = kByChunks ? i / 16 * 4 + i % 4 : i / kEights;
    const int in_slab = kByChunks ? i % 16 / 4 : i % kEights;
    pieces_[place(slab, in_slab)] = in_order_of<kCode>(eight);
  }
  // Returns quarter i % 4 of slab i / 4.
  __device__ __forceinline__ uint4 get(int i) const {
    return make_uint4(word(i, 0), word(i, 1), word(i, 2), word(i, 3));
  }

 private:
  // By this order the lanes of one put() use different banks.  So do those of one get(), except
  // that two of them share a bank for codes of 8 bits.
  __device__ __forceinline__ static int place(int slab, int eight) {
    return slab * kEights + (eight ^ (slab & 2 | slab >> 2 & 1));
  }
  // Returns the word of a quarter that the lane of a quad multiplies by its codes.  Codes of 8 bits
  // take two words, of which a lane has those of both chunks of a slab.
  __device__ __forceinline__ uint32_t word(int i, int lane) const {
    constexpr bool kIsPair = Step<kCode, 16>::kWords == 2;
    const int quarter = i % kEights;
    const int eight = kIsPair ? quarter / 2 * 2 + lane / 2 : lane;
    const int in_eight = kIsPair ? lane % 2 * 2 + quarter % 2 : quarter;
    return reinterpret_cast<const uint32_t*>(pieces_ + place(i / kEights, eight))[in_eight];
  }

  uint4* pieces_;
};

// A warp takes up to 32 slabs of a row at a time, and stores them to that row of `out`, or, by
// row_of_slot, slabs of a token to all rows that it becomes.
// T: BFloat16 or Float16.
template <Code kCode, bool kByChunks, typename T, Activates kActivates>
__global__ void __launch_bounds__(kOrderThreads)
    order_rows_kernel(const __grid_constant__ OrderArgs p) {
  using Slabs = OrderedSlabs<kCode, kByChunks>;
  constexpr int kEights = Slabs::kEights;
  __shared__ uint4 pieces[kOrderWarps][kOrderPieces];
  ptx::await_kernel_before();
  ptx::let_next_begin();
  const bool is_by_token = kActivates == Activates::kNo && p.row_of_slot != nullptr;
  const RowSpan span =
      is_by_token ? RowSpan{0, p.num_tokens} : span_rows(p.x.rows, static_cast<int>(blockIdx.y));
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  Slabs slabs(pieces[warp]);
  const auto row_pieces = static_cast<uint32_t>(p.padded / kEight);
  const uint32_t parts = order_parts(p.padded);
  // Why 32 bits do: 2^32 parts take terabytes.
  const uint32_t num = static_cast<uint32_t>(span.end - span.begin) * parts;
  for (uint32_t i = blockIdx.x * kOrderWarps + warp; i < num; i += gridDim.x * kOrderWarps) {
    const int64_t row = span.begin + i / parts;
    const int64_t from = p.index != nullptr && !is_by_token ? p.index[row] : row;
    const auto* in = static_cast<const T*>(p.x.in) + from * p.x.in_width;
    const uint32_t first = i % parts * kOrderPieces + static_cast<uint32_t>(lane);
    uint4 held[kEights];
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      const auto k = static_cast<int>((first + j * kWarp) * kEight);
      held[j] = k < p.x.width ? load_activated<kActivates>(p.x, in, k).words[0] : uint4{};
    }
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      slabs.put(j * kWarp + lane, held[j]);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      held[j] = slabs.get(j * kWarp + lane);
    }
    __syncwarp();  // all have been read
    const auto store = [&](int64_t to) {
      uint4* out = static_cast<uint4*>(p.x.out) + to * row_pieces + first;
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        if (first + j * kWarp < row_pieces) {
          out[j * kWarp] = held[j];
        }
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
