// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Weighted sums of rows.  A low-latency combine makes them where rows leave or where they arrive.
#pragma once

#include "comm/device/sum_copies.cuh"
#include "comm/low_latency/cuda/device.cuh"

namespace moebius::comm::low_latency_combine {

// Each lane gets a word of the sum.  Term j, if bit j of `terms` is set, has the weight
// weight_at(j) and the row of row_at(j), which all lanes call.  Weights are asked for when they are
// used, which takes fewer registers than holding them while rows come.
template <typename Type, typename Word, typename WeightAt, typename RowAt>
__device__ __forceinline__ Word
weighted_sum(uint32_t terms, bool is_inside, const WeightAt& weight_at, const RowAt& row_at) {
  using Element = typename Type::Element;
  constexpr int kPerWord = static_cast<int>(sizeof(Word) / sizeof(Element));
  constexpr int kAtOnce = 4;
  float sum[kPerWord];
#pragma unroll
  for (int i = 0; i < kPerWord; ++i) {
    sum[i] = 0.0f;
  }
#pragma unroll 1
  while (terms != 0) {
    Word words[kAtOnce];
    uint32_t left = terms;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (left != 0) {
        const int term = __ffs(static_cast<int>(left)) - 1;
        left &= left - 1;
        const Word* row = row_at(term);
        if (is_inside) {
          words[j] = load_word(row);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (terms != 0) {
        const float weight = weight_at(__ffs(static_cast<int>(terms)) - 1);
        terms &= terms - 1;
        const auto* x = reinterpret_cast<const Element*>(&words[j]);
        if (is_inside) {
#pragma unroll
          for (int i = 0; i < kPerWord; ++i) {
            sum[i] += weight * Type::load(x[i]);
          }
        }
      }
    }
  }
  Word rounded;
  auto* y = reinterpret_cast<Element*>(&rounded);
#pragma unroll
  for (int i = 0; i < kPerWord; ++i) {
    y[i] = Type::round(sum[i]);
  }
  return rounded;
}

}  // namespace moebius::comm::low_latency_combine
