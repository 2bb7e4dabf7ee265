// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tables made on a GPU from the expert ids a rank has, without its peers: the layout before a
// dispatch, the order by expert after it.  Everything is enqueued.
#pragma once

#include <cstdint>

#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::comm {

// Loads the kernels ahead of their first launch.
void load_routing_kernels(int device);

inline constexpr unsigned long long kNoBadId = ~0ull;

// DispatchLayout on one node; the kernel's side of every pointer is written whole.
struct LayoutArgs {
  const int32_t* ids;  // [T, K] global
  int64_t num_tokens;
  int topk;
  int num_experts;
  int num_ranks;
  const int32_t* rank_of;      // [E]
  int32_t* tokens_per_rank;    // [R]
  int32_t* tokens_per_node;    // [1]
  int32_t* tokens_per_expert;  // [E]
  bool* is_token_in_rank;      // [T, R]
  unsigned long long* bad_id;  // {place in ids | value} of the first outside [-1, E), or kNoBadId
};
void launch_layout(const LayoutArgs& args, const Stream& stream);

// ExpertOrder, from ids that are local.
struct ExpertOrderArgs {
  const int32_t* ids;  // [M, K] local, -1 = none
  int64_t num_ids;     // M * K
  int topk;
  int num_local;
  int alignment;
  int32_t* starts;          // scratch of expert_starts_bytes()
  int32_t* expert_offsets;  // [L + 1]
  int32_t* copy_row;        // [rows]
  int32_t* slot;            // [rows]
};
int64_t expert_starts_bytes(int64_t num_ids, int num_local);
// `starts` and `expert_offsets`; then, when the number of rows is known, the others.
void launch_expert_offsets(const ExpertOrderArgs& args, const Stream& stream);
void launch_expert_rows(const ExpertOrderArgs& args, const Stream& stream);

// Row i of `to` = row copy_row[i] of `from`, zeros where that is -1.
void launch_gather_rows(const Tensor& from,
                        const Tensor& copy_row,
                        const Tensor& to,
                        const Stream& stream);

}  // namespace moebius::comm
