// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How many rows a GEMM is expected to have where only the room for them is known.  `moebius plan`
// uses the same numbers.
#pragma once

#include <algorithm>
#include <cstdint>

namespace moebius {

// Letters are those of ExpertsDesc.
struct ExpectedRows {
  int64_t num_experts;        // E
  int64_t num_local_experts;  // L
  int64_t topk;               // K
  bool is_batched;

  // The rows of all local experts together, with room for M rows (batched: max_rows), if tokens
  // choose all experts equally often.  Standard rows are assumed to have been sent here, so that
  // each has at least one expert here; after an all-gather over many ranks (K L < E) that is too
  // many.
  constexpr int64_t of(int64_t rows) const {
    const int64_t even = (rows * topk * num_local_experts + num_experts - 1) / num_experts;
    return is_batched ? even : std::max(rows, even);
  }
  // The largest M of the standard format with of(M) < expected.
  constexpr int64_t most_below(int64_t expected) const {
    return std::min(expected - 1, (expected - 1) * num_experts / (topk * num_local_experts));
  }
};

}  // namespace moebius
