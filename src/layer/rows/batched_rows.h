// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Where a selection's row stands in the batched layout [L, max_rows, H] of a single rank: rows of
// an expert are in token order (slot order within a token).
#pragma once

#include <cstdint>
#include <vector>

#include "moebius/tensor.h"

namespace moebius {

struct BatchedRows {
  std::vector<int64_t> row;     // [T * K] index into [L * max_rows], -1 = masked or foreign
  std::vector<int32_t> counts;  // [L]
};

// ids i32 [T, K]; local expert = id - first_expert.
// Throws InvalidArgument when an expert gets more than max_rows rows (both named).
BatchedRows batched_rows(const Tensor& ids,
                         int64_t first_expert,
                         int64_t num_local_experts,
                         int64_t max_rows);

}  // namespace moebius
