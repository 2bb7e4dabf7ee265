// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows of a dispatch over several nodes.  Kernels copy them to where they are received or into
// messages, and sum them on their way back.  All pointers are device addresses.  Everything is
// enqueued, and nothing waits for a peer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/high_throughput/cuda/kernels.h"
#include "core/forward.h"

namespace moebius::comm {

// The copies of some tokens: index[token * stride + d] is the place of the copy to destination d
// among all copies from the same source, or -1.
struct CopyIndex {
  const int32_t* index = nullptr;
  int stride = 0;
  int64_t num_tokens = 0;
  int num_destinations = 0;  // at most kMaxCudaRanks
};

struct CopyRowsArgs {
  CopyIndex copies;
  // Each destination has a block, laid out as in RowLayout.
  std::byte* block[kMaxCudaRanks];    // null where no copy goes
  int64_t block_rows[kMaxCudaRanks];  // the rows that the block is laid out for
  int64_t first_row[kMaxCudaRanks];   // the first row of these copies
  // Fields are as in RowLayout; only payloads have a source.
  int num_payloads;
  int num_fields;
  int64_t field_bytes[kMaxFields];
  const std::byte* source[kMaxFields];
  // These are used when the fields have routing.
  int topk;
  Ids ids;            // [n, K] global; none: is_in travels in messages
  const bool* is_in;  // [n, num_ranks], without ids
  int num_ranks;
  const float* weights;   // [n, K] or null
  const int32_t* tokens;  // [n]; null: 0, 1, 2, ...
  // When destinations are ranks, global ids become local ids of the rank.  Null: ids stay global,
  // and weights as they are.
  const int32_t* rank_of;   // [E]
  const int32_t* local_of;  // [E]
  int num_experts;
  int first_rank;  // the rank that is destination 0
};
// The grid has num_blocks blocks at most.
void launch_copy_rows(const CopyRowsArgs& args, int num_blocks, const Stream& stream);

// The sum of each token's copies in order of destination, then of its biases; f32, rounded once.
struct SumRowsArgs {
  CopyIndex copies;
  const std::byte* rows[kMaxCudaRanks];  // the first of these copies at each destination
  const float* weights[kMaxCudaRanks];   // the weights of the same copies; [rows, K]
  const std::byte* bias[2];              // [n, row], or null
  const int32_t* out_index;              // row of each token's sum, -1 = none; null: the token
  int out_stride;
  std::byte* out;
  float* out_weights;  // [rows, K]; null: weights are not summed
  int topk;
  DType dtype;  // f32, f16 or bf16
  uint32_t row_bytes;
  bool is_aligned;  // all rows are whole 16-byte words
};
void launch_sum_rows(const SumRowsArgs& args, int num_blocks, const Stream& stream);

void load_node_kernels(int device);

}  // namespace moebius::comm
