// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The batched layout [L, max_rows, H] of a single rank: where a selection's row stands in it, and
// rows brought there.  Rows of an expert are in token order (slot order within a token).
#pragma once

#include <cstdint>
#include <vector>

#include "moebius/stream.h"
#include "moebius/workspace.h"

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

struct PlaceRows {
  Tensor x;              // [T, H]
  Tensor local_ids;      // i32 [T, K], -1 = masked or foreign
  Tensor lora_ids = {};  // i32 [T] or undefined
  Tensor scratch;        // see place_rows_scratch()
  // Outputs.
  Tensor rows;               // [L, max_rows, H]
  Tensor counts;             // i32 [L]
  Tensor row_lora_ids = {};  // i32 [L, max_rows], with lora_ids
};

// What place_rows() needs for ids on the device.
TensorSpec place_rows_scratch(const Shape& ids, Device device);

// Rows without room are refused on the CPU, as by batched_rows(), and left out on a GPU, where
// nothing waits.  Rows not in use keep what they hold.
void place_rows(const PlaceRows& args, const Stream& stream);

}  // namespace moebius
