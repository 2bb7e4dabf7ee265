// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tables that a GPU makes from the expert ids of its rank, without its peers: the layout before a
// dispatch, and the order by expert after it.  Every launch_ function enqueues and returns; it
// throws CudaError when the launch fails.
#pragma once

#include <cstdint>

#include "core/forward.h"
#include "core/ids.h"

namespace moebius::comm {

// Loads the kernels before their first launch.
void load_routing_kernels(int device);

inline constexpr unsigned long long kNoBadId = ~0ull;

// A DispatchLayout of ranks on one node.  Every output is written completely.
struct LayoutArgs {
  Ids ids;  // [T, K] global
  int64_t num_tokens;
  int topk;
  int num_experts;
  int num_ranks;
  const int32_t* rank_of;      // [E]
  int32_t* tokens_per_rank;    // [R]
  int32_t* tokens_per_node;    // [1]
  int32_t* tokens_per_expert;  // [E]
  bool* is_token_in_rank;      // [T, R]
  // {index | id} of the first id outside [-1, E), in mapped memory; it begins as kNoBadId, and
  // stays as it is where there is none.
  unsigned long long* bad_id;
};
void launch_layout(const LayoutArgs& args, const Stream& stream);

// A Route (comm/routing/route.h): which copies some tokens make, and the place of each among those
// of its destination.
struct RouteArgs {
  Ids ids;  // [n, K] global; ids of no expert are passed over
  // Without ids: which ranks each token goes to, and the destination of each rank.
  const bool* is_in = nullptr;  // [n, num_ranks]
  int num_ranks = 0;
  int64_t num_tokens = 0;  // n
  int topk = 0;
  int num_experts = 0;
  const int32_t* destination_of = nullptr;       // [E]
  const int32_t* destination_of_rank = nullptr;  // [num_ranks]; null: the rank itself
  int first = 0;                                 // destinations [first, first + num_destinations)
  int num_destinations = 0;
  int32_t* index = nullptr;   // [n, num_destinations], -1 = no copy; or null
  int32_t* copies = nullptr;  // [num_destinations]; or null
};
void launch_route(const RouteArgs& args, const Stream& stream);

// The number of selections among ids [n], and the first bad id, as in LayoutArgs.
struct CheckedIds {
  unsigned long long bad_id;
  unsigned long long selections;
};
void launch_check_ids(
    Ids ids, int64_t num_ids, int num_experts, CheckedIds* checked, const Stream& stream);

// counts[l] = how many of ids [n] are l, rounded up to a multiple of `alignment`.
void launch_expert_counts(
    Ids ids, int64_t num_ids, int num_local, int alignment, int32_t* counts, const Stream& stream);

// An ExpertOrder from local ids.
struct ExpertOrderArgs {
  Ids ids;          // [M, K] local, -1 = none
  int64_t num_ids;  // M * K
  int topk;
  int num_local;
  int alignment;
  int32_t* starts;          // scratch of expert_starts_bytes()
  int32_t* expert_offsets;  // [L + 1]
  int32_t* copy_row;        // [rows]
  int32_t* slot;            // [rows]
};
int64_t expert_starts_bytes(int64_t num_ids, int num_local);
// The first fills `starts` and `expert_offsets`; the second fills the rest, once the number of rows
// is known.
void launch_expert_offsets(const ExpertOrderArgs& args, const Stream& stream);
void launch_expert_rows(const ExpertOrderArgs& args, const Stream& stream);

// Row i of `to` becomes row copy_row[i] of `from`, or zeros where copy_row[i] is -1.
void launch_gather_rows(const Tensor& from,
                        const Tensor& copy_row,
                        const Tensor& to,
                        const Stream& stream);

}  // namespace moebius::comm
