// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows of activations in the order of k in which few_rows_gemm.cu decodes codes.  They can be
// activated and quantized on the way.
#pragma once

#include <limits>

#include "experts/cuda/activation/activation.cuh"
#include "experts/cuda/gemm/dequant/few_rows_decode.cuh"
#include "experts/cuda/gemm/dequant/few_rows_launch.cuh"
#include "experts/cuda/gemm/dequant/few_rows_stages.cuh"
#include "experts/cuda/gemm/dequant/norms.cuh"
#include "experts/cuda/rows/largest.cuh"
#include "experts/cuda/rows/scaled_codes.cuh"

namespace moebius::cuda::few_rows {

// Brings slabs of a row into their order, by a warp.  It loads and stores neighbours, so that whole
// lines of memory move, and exchanges words in between through shared memory: a slab has four
// eights, and its quarters have a word of each.
// kByChunks: see is_by_chunks().
template <Code kCode, bool kByChunks>
class OrderedSlabs {
 public:
  // `pieces` has room for kOrderPieces, and is the warp's own.  `is_packed`: see WeightArgs.
  __device__ __forceinline__ OrderedSlabs(uint4* pieces, bool is_packed)
      : pieces_(pieces), is_packed_(is_packed) {}

  // Brings a part into order.
  __device__ __forceinline__ void order(uint32_t lane, uint4 (&part)[kOrderPieces / kWarp]) {
#pragma unroll
    for (int j = 0; j < kOrderPieces / kWarp; ++j) {
      put(j * kWarp + static_cast<int>(lane), part[j]);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kOrderPieces / kWarp; ++j) {
      part[j] = get(j * kWarp + static_cast<int>(lane));
    }
    __syncwarp();  // all have been read
  }

 private:
  // Takes the eight elements of the row that begin at 8 * i.
  __device__ __forceinline__ void put(int i, const uint4& eight) {
    const int slab = kByChunks ? i / 16 * 4 + i % 4 : i / kEights;
    const int in_slab = kByChunks ? i % 16 / 4 : i % kEights;
    pieces_[place(slab, in_slab)] = in_order_of<kCode>(eight, is_packed_);
  }
  // Returns quarter i % 4 of slab i / 4.
  __device__ __forceinline__ uint4 get(int i) const {
    return make_uint4(word(i, 0), word(i, 1), word(i, 2), word(i, 3));
  }

  static constexpr int kEights = kSlab / kEight;  // of a slab, which has as many quarters

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
  bool is_packed_;
};

// A warp holds a part of a row in its registers: each lane has one of every kWarp pieces.
using Part = uint4[kOrderPieces / kWarp];

// Says which rows a kernel reads, where they lie, and where their parts go.
template <typename T, Activates kActivates>
struct RowPlaces {
  const OrderArgs& p;
  bool is_by_token = kActivates == Activates::kNo && p.row_of_slot != nullptr;

  __device__ __forceinline__ RowSpan span() const {
    return is_by_token ? RowSpan{0, p.num_tokens}
                       : span_rows(p.x.rows, static_cast<int>(blockIdx.y));
  }
  // `first`: the lane's first piece of the part.
  __device__ __forceinline__ void load(int64_t row, uint32_t first, Part& part) const {
    const int64_t from = p.index != nullptr && !is_by_token ? p.index[row] : row;
    const auto* in = static_cast<const T*>(p.x.in) + from * p.x.in_width;
#pragma unroll
    for (int j = 0; j < kOrderPieces / kWarp; ++j) {
      const auto k = static_cast<int>((first + j * kWarp) * kEight);
      part[j] = k < p.x.width ? load_activated<kActivates>(p.x, in, k).words[0] : uint4{};
    }
  }
  // Calls store(to) for each row that becomes of `row`.
  template <typename Store>
  __device__ __forceinline__ void for_each_row(int64_t row, const Store& store) const {
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
  __device__ __forceinline__ void store(int64_t row, uint32_t first, const Part& part) const {
    for_each_row(row, [&](int64_t to) {
      const auto row_pieces = static_cast<uint32_t>(p.padded / kEight);
      uint4* out = static_cast<uint4*>(p.x.out) + to * row_pieces + first;
#pragma unroll
      for (int j = 0; j < kOrderPieces / kWarp; ++j) {
        if (first + j * kWarp < row_pieces) {
          out[j * kWarp] = part[j];
        }
      }
    });
  }
  // `sums`: of the lane's pieces of the part.  Those of p.sum_pieces lanes are added up.
  __device__ __forceinline__ void store_sums(int64_t row,
                                             uint32_t first,
                                             const float (&sums)[kOrderPieces / kWarp]) const {
    constexpr int kOwn = kOrderPieces / kWarp;
    static_assert(kOwn == 4);
    const auto lane = static_cast<int>(first % kWarp);
    // Each lane keeps one piece of two, and then one of these, and gives the other to a neighbour.
    const auto one_of = [&](float even, float odd, int by) {
      const bool is_odd = (lane & by) != 0;
      return (is_odd ? odd : even) + __shfl_xor_sync(kAll, is_odd ? even : odd, by);
    };
    float sum = one_of(one_of(sums[0], sums[1], 1), one_of(sums[2], sums[3], 1), 2);
    for (int by = kOwn; by < p.sum_pieces; by *= 2) {
      sum += __shfl_xor_sync(kAll, sum, by);
    }
    sum *= p.sum_factor;
    const uint32_t piece = first + static_cast<uint32_t>(lane % kOwn * kWarp);
    if (piece >= static_cast<uint32_t>(p.padded / kEight)) {
      return;
    }
    // The lanes of a sum share its copies.
    float* out = p.sums + piece / static_cast<uint32_t>(p.sum_pieces) * 2 * p.sum_rows;
    for (int copy = lane % p.sum_pieces / kOwn; copy < 2; copy += p.sum_pieces / kOwn) {
      for_each_row(row, [&](int64_t to) { out[copy * (p.sum_rows + 1) + to] = sum; });
    }
  }
};

// A warp takes up to 32 slabs of a row at a time, and stores them to that row of `out`, or, by
// row_of_slot, slabs of a token to all rows that it becomes.
// T: BFloat16 or Float16.
template <Code kCode, bool kByChunks, typename T, Activates kActivates>
__global__ void __launch_bounds__(kOrderThreads)
    order_rows_kernel(const __grid_constant__ OrderArgs p) {
  __shared__ uint4 pieces[kOrderWarps][kOrderPieces];
  ptx::await_kernel_before();
  ptx::let_next_begin();
  const RowPlaces<T, kActivates> places{p};
  const RowSpan span = places.span();
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / kWarp);
  const auto lane = static_cast<uint32_t>(threadIdx.x) % kWarp;
  OrderedSlabs<kCode, kByChunks> slabs(pieces[warp], p.is_packed);
  const uint32_t parts = order_parts(p.padded);
  // Why 32 bits do: 2^32 parts take terabytes.
  const uint32_t num = static_cast<uint32_t>(span.end - span.begin) * parts;
  for (uint32_t i = blockIdx.x * kOrderWarps + warp; i < num; i += gridDim.x * kOrderWarps) {
    const int64_t row = span.begin + i / parts;
    const uint32_t first = i % parts * kOrderPieces + lane;
    Part part;
    places.load(row, first, part);
    slabs.order(lane, part);
    places.store(row, first, part);
  }
}

template <typename OfPair>
__device__ __forceinline__ uint4 of_pairs(const uint4& eight, const OfPair& of) {
  return make_uint4(of(eight.x), of(eight.y), of(eight.z), of(eight.w));
}

// Rows in bf16 become f16, multiplied by their norms (norms.cuh).
class Halves {
 public:
  static constexpr bool kHasSums = false;

  __device__ __forceinline__ Halves(const OrderArgs&, int64_t /*row*/, float largest)
      : norm_(norm_of(largest, kNormalRow)) {}

  __device__ __forceinline__ uint4 of(const uint4& eight) const {
    return of_pairs(eight, [&](uint32_t bits) {
      const float2 v = widen_pair(BFloat16{}, bits);
      return narrow_pair(Float16{}, v.x * norm_, v.y * norm_);
    });
  }
  __device__ __forceinline__ void put_unit(const OrderArgs& p, int64_t row) const {
    p.units[row] = reciprocal_of_norm(norm_);
  }

 private:
  float norm_;
};

// Rows in bf16 or f16 become what whole_int4_pairs() wants in the same way, and elements are added
// up.  Those in bf16 are exact down to 2^-27 of the largest, and others are off by at most 2^-35 of
// it.  Infinite ones become 1 and -1, finite ones beside them 0, and the unit of such a row is
// infinite: so the product of one by a code less its zero point has the sign that it should.  Two
// of them may give infinity where f32 sums give NaN.
template <typename T>
class SummedHalves {
 public:
  static constexpr bool kHasSums = true;

  __device__ __forceinline__ SummedHalves(const OrderArgs&, int64_t /*row*/, float largest)
      : norm_(norm_of(largest, kNormalRow)), is_infinite_(isinf(largest)) {}

  // Adds the elements to `sum`.
  __device__ __forceinline__ uint4 of(const uint4& eight, float& sum) const {
    return is_infinite_
               ? of(eight, sum,
                    [](float v) { return isinf(v) ? copysignf(1.0f, v) : v * 0.0f; })  // NaN stays
               : of(eight, sum, [&](float v) { return v * norm_; });
  }
  __device__ __forceinline__ void put_unit(const OrderArgs& p, int64_t row) const {
    p.units[row] =
        is_infinite_ ? std::numeric_limits<float>::infinity() : reciprocal_of_norm(norm_);
  }

 private:
  template <typename Scaled>
  __device__ __forceinline__ static uint4 of(const uint4& eight, float& sum, const Scaled& scaled) {
    return of_pairs(eight, [&](uint32_t bits) {
      const float2 v = widen_pair(T{}, bits);
      const float even = scaled(v.x);
      const float odd = scaled(v.y);
      sum += even + odd;
      return narrow_pair(Float16{}, even, odd * kOddInt4Factor);
    });
  }

  float norm_;
  bool is_infinite_;
};

// Rows become codes times their block scales, in bf16.
template <typename T, QuantFormat kFormat, quant::Encode kHow>
class ScaledCodes {
 public:
  static constexpr bool kHasSums = false;

  __device__ __forceinline__ ScaledCodes(const OrderArgs& p, int64_t row, float largest)
      : is_of_row_(p.global == nullptr) {
    if constexpr (kFormat == QuantFormat::kNvfp4) {
      global_ = is_of_row_ ? quant::row_global_scale(largest)
                           : p.global[p.is_global_per_group ? group_of(p.x.rows, row) : 0];
    }
  }

  __device__ __forceinline__ uint4 of(const uint4& eight) const {
    float v[kEight];
    put_scaled_codes<kFormat, kHow>(Raw8<T>{{eight}}, global_, is_of_row_, v);
    return as_raw<BFloat16>(v).words[0];
  }
  __device__ __forceinline__ void put_unit(const OrderArgs&, int64_t /*row*/) const {}

 private:
  bool is_of_row_;
  float global_ = 0.0f;
};

// This orders rows that become what Made makes of them, for which it must know the largest element
// of a row.  Some warps of a block, p.row_warps, share a row and hold kHeldParts of its parts each;
// they load others twice.
template <Code kCode, bool kByChunks, typename T, Activates kActivates, typename Made>
__global__ void __launch_bounds__(kOrderThreads)
    order_made_rows_kernel(const __grid_constant__ OrderArgs p) {
  __shared__ uint4 pieces[kOrderWarps][kOrderPieces];
  __shared__ float of_warp[2][kOrderWarps];  // used in turn, so that rows need one barrier
  ptx::await_kernel_before();
  ptx::let_next_begin();
  const RowPlaces<T, kActivates> places{p};
  const RowSpan span = places.span();
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / kWarp);
  const int in_row = warp % p.row_warps;
  const auto lane = static_cast<uint32_t>(threadIdx.x) % kWarp;
  OrderedSlabs<kCode, kByChunks> slabs(pieces[warp], p.is_packed);
  const auto parts = static_cast<int>(order_parts(p.padded));
  const auto first_piece = [&](int part) {
    return static_cast<uint32_t>(part * kOrderPieces) + lane;
  };
  int turn = 0;
  const int rows_at_once = kOrderWarps / p.row_warps;
  for (int64_t begin = span.begin + int64_t{blockIdx.x} * rows_at_once; begin < span.end;
       begin += int64_t{gridDim.x} * rows_at_once) {
    const int64_t own_row = begin + warp / p.row_warps;
    const int own_parts = own_row < span.end ? parts : 0;
    const int64_t row = own_parts > 0 ? own_row : begin;  // one that exists
    Part held[kHeldParts];
    float largest = 0.0f;
    const auto load = [&](int i, Part& part) {
      places.load(row, first_piece(i), part);
#pragma unroll
      for (const uint4& eight : part) {
        largest = fmaxf(largest, absmax(Raw8<T>{{eight}}));
      }
    };
    const auto for_each_part = [&](const auto& take_held, const auto& take) {
#pragma unroll
      for (int j = 0; j < kHeldParts; ++j) {
        const int i = in_row + j * p.row_warps;
        if (i < own_parts) {
          take_held(i, held[j]);
        }
      }
      for (int i = in_row + kHeldParts * p.row_warps; i < own_parts; i += p.row_warps) {
        take(i);
      }
    };
    for_each_part(load, [&](int i) {
      Part part;
      load(i, part);
    });
    largest = largest_of_warp(largest);
    if (p.row_warps > 1) {
      of_warp[turn][warp] = largest;
      __syncthreads();
      for (int i = 0; i < p.row_warps; ++i) {
        largest = fmaxf(largest, of_warp[turn][warp - in_row + i]);
      }
      turn ^= 1;
    }
    const Made made(p, row, largest);
    const auto store = [&](int i, Part& part) {
      [[maybe_unused]] float sums[kOrderPieces / kWarp] = {};
#pragma unroll
      for (int j = 0; j < kOrderPieces / kWarp; ++j) {
        if constexpr (Made::kHasSums) {
          part[j] = made.of(part[j], sums[j]);
        } else {
          part[j] = made.of(part[j]);
        }
      }
      slabs.order(lane, part);
      places.store(row, first_piece(i), part);
      if constexpr (Made::kHasSums) {
        places.store_sums(row, first_piece(i), sums);
      }
    };
    for_each_part(store, [&](int i) {
      Part part;
      places.load(row, first_piece(i), part);
      store(i, part);
    });
    if (in_row == 0 && lane == 0 && own_parts > 0) {
      places.for_each_row(row, [&](int64_t to) { made.put_unit(p, to); });
    }
  }
}

}  // namespace moebius::cuda::few_rows
