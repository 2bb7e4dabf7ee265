// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The order in which an experts implementation computes rows: they are sorted by local expert, and
// within an expert by (token, slot) or by their place in the batched tensor.
// Letters: M tokens, K top-k, E global experts, L local experts, R rows to compute.
#pragma once

#include <cstdint>

#include "moebius/experts.h"

namespace moebius {

// Local expert e has rows expert_offsets[e] <= r < expert_offsets[e + 1].  Row r is computed from
// input row input_row(r) and written to row output_rows[r] of the output seen as [.., H].
struct RowOrder {
  int32_t* expert_offsets = nullptr;  // [L + 1]
  int32_t* output_rows = nullptr;     // [slots]; [R, slots): masked and foreign selections
  int64_t num_slots = 0;              // standard M * K, batched L * max_rows
  int64_t num_rows = 0;               // R
  int64_t rows_per_input = 1;         // standard K, batched 1

  int64_t input_row(int64_t r) const { return output_rows[r] / rows_per_input; }
  int64_t rows_of(int64_t expert) const {
    return expert_offsets[expert + 1] - expert_offsets[expert];
  }
};

// Fills `order`, whose two arrays the caller provides, in the standard format from topk_ids i32 [M,
// K] and expert_map i32 [E] (undefined: ids are local, E = L), by a stable counting sort.  Throws
// InvalidArgument naming token, slot and id for an id outside [-1, E), and naming the expert for a
// map entry outside [-1, L); the two arrays are then as they were.
void order_selections(const Tensor& topk_ids,
                      const Tensor& expert_map,
                      int64_t num_experts,
                      int64_t num_local_experts,
                      RowOrder& order);

// Fills `order` in the batched format: each expert has rows [0, expert_num_tokens[e]), and its
// other rows are in no list.  Throws InvalidArgument naming the expert for a count outside [0,
// max_rows].
void order_batched(const Tensor& expert_num_tokens, int64_t max_rows, RowOrder& order);

}  // namespace moebius
