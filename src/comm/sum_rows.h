// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Sums of rows, weighted or not: f32 accumulation in the order given, starting from 0, rounded
// once. The result is the same bit for bit whatever the processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "moebius/dtype.h"

namespace moebius {

struct SumRows {
  std::span<const std::byte* const> rows;  // each n elements of dtype (f32, f16 or bf16)
  std::span<const float> weights;          // as many; none: 1
  int64_t n = 0;
  std::byte* out = nullptr;
  bool past_caches = false;  // store so; then stream_fence() before another thread may read
};

void sum_rows(DType dtype, const SumRows& sum);
void sum_rows_portable(DType dtype, const SumRows& sum);

// bf16 rows; n is a multiple of kSumBlock; weights may be null.  REQUIRES: avx2.
// Why plain pointers: that file shares no inline functions with others.
inline constexpr int64_t kSumBlock = 32;
void sum_rows_bf16_avx2(const std::byte* const* rows,
                        const float* weights,
                        size_t num_rows,
                        int64_t n,
                        std::byte* out,
                        bool past_caches);

}  // namespace moebius
