// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// RowGroups: which rows of a matrix on a GPU are in use, and which local expert each belongs to.
// Counts stay on the device, so kernels are launched for all rows there is room for.
#pragma once

#include <cstdint>

namespace moebius::cuda {

// The most local experts that the kernels of this stage take.
inline constexpr int kMaxExperts = 1024;

struct RowGroups {
  // Sorted: group g has rows [offsets[g], offsets[g + 1]).
  const int32_t* offsets = nullptr;
  // Batched: group g has rows g * max_rows + [0, counts[g]); counts beyond the room are cut.  With
  // neither offsets nor counts it has all max_rows.
  const int32_t* counts = nullptr;
  int64_t max_rows = 0;
  int num_groups = 1;
  // Sizes are complete before a kernel that takes these groups begins.  So another kernel is
  // between it and the one that makes them (see core/cuda/launch.cuh).
  bool settled = false;
  // Kernels that make GEMM2's rows may let GEMM2 begin before they await GEMM1
  // (ptx::await_and_let_next).
  bool between_gemms = false;

  static RowGroups sorted(const int32_t* offsets, int64_t num_groups) {
    return {offsets, nullptr, 0, static_cast<int>(num_groups)};
  }
  static RowGroups batched(const int32_t* counts, int64_t max_rows, int64_t num_groups) {
    return {nullptr, counts, max_rows, static_cast<int>(num_groups)};
  }
  static RowGroups all(int64_t rows) { return {nullptr, nullptr, rows, 1}; }

  // The number of runs of neighbouring rows, for kernels that do not care about groups.
  int num_spans() const { return offsets != nullptr ? 1 : num_groups; }
};

}  // namespace moebius::cuda
