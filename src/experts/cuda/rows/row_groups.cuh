// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// RowGroups as kernels see them.
#pragma once

#include <algorithm>

#include "experts/cuda/rows/row_groups.h"

namespace moebius::cuda {

struct RowSpan {
  int64_t begin;
  int64_t end;
};

// Why from L2: a kernel that begins while the one ahead ends may ask for settled sizes when L1
// still has those of an earlier call.
__device__ __forceinline__ RowSpan group_rows(const RowGroups& rows, int g) {
  if (rows.offsets != nullptr) {
    return {__ldcg(rows.offsets + g), __ldcg(rows.offsets + g + 1)};
  }
  int64_t count = rows.max_rows;
  if (rows.counts != nullptr) {
    count = min(max(int64_t{__ldcg(rows.counts + g)}, int64_t{0}), rows.max_rows);
  }
  const int64_t begin = g * rows.max_rows;
  return {begin, begin + count};
}

// The rows of span s, see RowGroups::num_spans().
__device__ __forceinline__ RowSpan span_rows(const RowGroups& rows, int s) {
  return rows.offsets != nullptr ? RowSpan{0, rows.offsets[rows.num_groups]} : group_rows(rows, s);
}

// REQUIRES: row is in use.
__device__ __forceinline__ int group_of(const RowGroups& rows, int64_t row) {
  if (rows.offsets == nullptr) {
    return rows.max_rows > 0 ? static_cast<int>(row / rows.max_rows) : 0;
  }
  int low = 0;
  int high = rows.num_groups;  // offsets[low] <= row < offsets[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (rows.offsets[middle] <= row ? low : high) = middle;
  }
  return low;
}

// A grid of (x, spans) blocks for `room` rows; a block takes `rows_per_block` of them at a time.
inline dim3 span_grid(const RowGroups& rows, int64_t room, int64_t rows_per_block, int num_sms) {
  constexpr int64_t kBlocksPerSm = 16;
  const int64_t spans = rows.num_spans();
  const int64_t needed = (room / spans + rows_per_block - 1) / rows_per_block;
  const int64_t most = std::max<int64_t>(1, kBlocksPerSm * num_sms / spans);
  return dim3(static_cast<unsigned>(std::clamp<int64_t>(needed, 1, most)),
              static_cast<unsigned>(spans));
}

}  // namespace moebius::cuda
