// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The batched layout [L, max_rows, H] of a single rank: where the row of a selection stands in it,
// and how rows get there.  Rows of an expert are in token order, and in slot order within a token.
#pragma once

#include <cstdint>
#include <vector>

#include "moebius/stream.h"
#include "moebius/workspace.h"

namespace moebius {

struct BatchedRows {
  std::vector<int64_t> row;     // [T * K] index into [L * max_rows], -1 = masked or foreign
  std::vector<int32_t> counts;  // [L] rows of each expert
};

// ids i32 or i64 [T, K]; the local expert of an id is id - first_expert.
// Throws InvalidArgument, naming both numbers, if an expert gets more than max_rows rows.
BatchedRows batched_rows(const Tensor& ids,
                         int64_t first_expert,
                         int64_t num_local_experts,
                         int64_t max_rows);

struct PlaceRows {
  Tensor x;                         // [T, H]
  Tensor local_ids;                 // i32 [T, K], -1 = masked or foreign
  std::vector<Tensor> beside = {};  // [T, ...] each, whose rows go with those of x
  Tensor scratch;                   // see place_rows_scratch()
  // Outputs.
  Tensor rows;                           // [L, max_rows, H]
  Tensor counts;                         // i32 [L]
  std::vector<Tensor> rows_beside = {};  // [L, max_rows, ...] for each of `beside`
};

// The scratch tensor that place_rows() needs for ids of this shape on this device.
TensorSpec place_rows_scratch(const Shape& ids, Device device);

// Copies rows to their experts' blocks.  Rows of the blocks that are not in use keep what they
// hold. On the CPU it throws as batched_rows() does if an expert has no room.  On a GPU, where the
// host does not wait, rows without room are left out.
void place_rows(const PlaceRows& args, const Stream& stream);

}  // namespace moebius
