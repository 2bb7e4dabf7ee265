// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One warp adds a token's copies, and biases, in the order given: in f32, rounded once.  Where
// there is an addend, it is added to that result, which is then rounded again.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "comm/device/grid.cuh"
#include "core/cuda/ptx.cuh"
#include "moebius/dtype.h"

namespace moebius::comm {

// The element types of a row, and how words of 16 bytes of them are added and rounded.

struct F32 {
  static constexpr int kPerWord = 4;
  using Element = float;
  __device__ static float load(Element x) { return x; }
  __device__ static Element round(float x) { return x; }
  __device__ static void add(float* sum, int4 v) {
    sum[0] += __int_as_float(v.x);
    sum[1] += __int_as_float(v.y);
    sum[2] += __int_as_float(v.z);
    sum[3] += __int_as_float(v.w);
  }
  __device__ static int4 round(const float* sum) {
    return make_int4(__float_as_int(sum[0]), __float_as_int(sum[1]), __float_as_int(sum[2]),
                     __float_as_int(sum[3]));
  }
};

struct BF16Pair {
  using Element = __nv_bfloat16;
  __device__ static float load(Element x) { return __bfloat162float(x); }
  __device__ static Element round(float x) { return __float2bfloat16_rn(x); }
  __device__ static void add_pair(float* sum, int pair) {
    sum[0] += __int_as_float(pair << 16);
    sum[1] += __int_as_float(pair & static_cast<int>(0xffff0000u));
  }
  __device__ static int round_pair(const float* sum) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(sum[0], sum[1]);
    return *reinterpret_cast<const int*>(&pair);
  }
};

struct F16Pair {
  using Element = __half;
  __device__ static float load(Element x) { return __half2float(x); }
  __device__ static Element round(float x) { return __float2half_rn(x); }
  __device__ static void add_pair(float* sum, int pair) {
    const float2 values = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    sum[0] += values.x;
    sum[1] += values.y;
  }
  __device__ static int round_pair(const float* sum) {
    const __half2 pair = __floats2half2_rn(sum[0], sum[1]);
    return *reinterpret_cast<const int*>(&pair);
  }
};

template <typename Pair>
struct PairWords : Pair {
  static constexpr int kPerWord = 8;
  using Pair::round;
  __device__ static void add(float* sum, int4 v) {
    Pair::add_pair(sum, v.x);
    Pair::add_pair(sum + 2, v.y);
    Pair::add_pair(sum + 4, v.z);
    Pair::add_pair(sum + 6, v.w);
  }
  __device__ static int4 round(const float* sum) {
    return make_int4(Pair::round_pair(sum), Pair::round_pair(sum + 2), Pair::round_pair(sum + 4),
                     Pair::round_pair(sum + 6));
  }
};
using BF16 = PairWords<BF16Pair>;
using F16 = PairWords<F16Pair>;

// What `visit` returns for the type of rows of a dtype: f32, f16, or else bf16.
template <typename Visit>
auto with_row_type(DType dtype, const Visit& visit) {
  return dtype == DType::kF32 ? visit(F32{}) : dtype == DType::kF16 ? visit(F16{}) : visit(BF16{});
}

// Adds a word of each of two rows, rounded as a sum of two floats is.  Why it begins with -0: with
// 0 the sum of -0 and -0 would become 0.
template <typename Type>
__device__ __forceinline__ int4 sum_of_two(int4 a, int4 b) {
  float sum[Type::kPerWord];
#pragma unroll
  for (float& x : sum) {
    x = -0.0f;
  }
  Type::add(sum, a);
  Type::add(sum, b);
  return Type::round(sum);
}

__device__ __forceinline__ int4 load_word_of(const std::byte* row, uint32_t at) {
  return ptx::ld_no_allocate(reinterpret_cast<const int4*>(row + at));
}

// Adds kRows rows, kWords words of each at a time: all loads are under way before the first is
// added.
template <typename Type, bool kAdds, int kRows, int kWords>
__device__ __forceinline__ void sum_words(const std::byte* const* rows,
                                          const std::byte* addend,
                                          std::byte* out,
                                          uint32_t row_bytes,
                                          int lane) {
  const std::byte* row[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    row[i] = rows[i];
  }
  constexpr uint32_t kStride = kWarpLanes * sizeof(int4);
  for (uint32_t begin = lane * sizeof(int4); begin < row_bytes; begin += kStride * kWords) {
    int4 word[kRows][kWords];
    [[maybe_unused]] int4 last[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const uint32_t at = begin + w * kStride;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        word[i][w] = at < row_bytes ? load_word_of(row[i], at) : int4{};
      }
      if constexpr (kAdds) {
        last[w] = at < row_bytes ? load_word_of(addend, at) : int4{};
      }
    }
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const uint32_t at = begin + w * kStride;
      float sum[Type::kPerWord] = {};
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        Type::add(sum, word[i][w]);
      }
      if (at < row_bytes) {
        int4 rounded = Type::round(sum);
        if constexpr (kAdds) {
          rounded = sum_of_two<Type>(rounded, last[w]);
        }
        ptx::st_no_allocate(reinterpret_cast<int4*>(out + at), rounded);
      }
    }
  }
}

// Adds any number of rows.
template <typename Type, bool kAdds>
__device__ void sum_many(const std::byte* const* rows,
                         int num_rows,
                         const std::byte* addend,
                         std::byte* out,
                         uint32_t row_bytes,
                         int lane) {
  for (uint32_t at = lane * sizeof(int4); at < row_bytes; at += kWarpLanes * sizeof(int4)) {
    float sum[Type::kPerWord] = {};
#pragma unroll 4
    for (int i = 0; i < num_rows; ++i) {
      Type::add(sum, load_word_of(rows[i], at));
    }
    int4 rounded = Type::round(sum);
    if constexpr (kAdds) {
      rounded = sum_of_two<Type>(rounded, load_word_of(addend, at));
    }
    ptx::st_no_allocate(reinterpret_cast<int4*>(out + at), rounded);
  }
}

// Adds rows that are not whole words.
template <typename Type, bool kAdds>
__device__ void sum_elements(const std::byte* const* rows,
                             int num_rows,
                             const std::byte* addend,
                             std::byte* out,
                             uint32_t row_bytes,
                             int lane) {
  using Element = typename Type::Element;
  for (uint32_t e = lane; e < row_bytes / sizeof(Element); e += kWarpLanes) {
    float sum = 0.0f;
    for (int i = 0; i < num_rows; ++i) {
      sum += Type::load(reinterpret_cast<const Element*>(rows[i])[e]);
    }
    Element rounded = Type::round(sum);
    if constexpr (kAdds) {
      rounded = Type::round(Type::load(rounded) +
                            Type::load(reinterpret_cast<const Element*>(addend)[e]));
    }
    reinterpret_cast<Element*>(out)[e] = rounded;
  }
}

// is_aligned: rows, addend and out are whole words.  Why kAdds is a template parameter: an addend
// costs registers.
template <typename Type, bool kAdds>
__device__ void sum_rows(const std::byte* const* rows,
                         int num_rows,
                         const std::byte* addend,
                         uint32_t bytes,
                         bool is_aligned,
                         std::byte* out,
                         int lane) {
  if (!is_aligned) {
    sum_elements<Type, kAdds>(rows, num_rows, addend, out, bytes, lane);
    return;
  }
  constexpr int kWordsOfSeven = kAdds ? 1 : 2;  // more than 14 words at a time spill
  switch (num_rows) {
    case 1:
      return sum_words<Type, kAdds, 1, 4>(rows, addend, out, bytes, lane);
    case 2:
      return sum_words<Type, kAdds, 2, 4>(rows, addend, out, bytes, lane);
    case 3:
      return sum_words<Type, kAdds, 3, 3>(rows, addend, out, bytes, lane);
    case 4:
      return sum_words<Type, kAdds, 4, 2>(rows, addend, out, bytes, lane);
    case 5:
      return sum_words<Type, kAdds, 5, 2>(rows, addend, out, bytes, lane);
    case 6:
      return sum_words<Type, kAdds, 6, 2>(rows, addend, out, bytes, lane);
    case 7:
      return sum_words<Type, kAdds, 7, kWordsOfSeven>(rows, addend, out, bytes, lane);
    case 8:
      return sum_words<Type, kAdds, 8, 1>(rows, addend, out, bytes, lane);
    default:
      return sum_many<Type, kAdds>(rows, num_rows, addend, out, bytes, lane);
  }
}

}  // namespace moebius::comm
