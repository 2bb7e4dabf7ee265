// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Rebalance: which physical experts a model should have, by the load of its logical experts.
// A logical expert is an id of the model.  A physical expert is a slot that holds one; several that
// hold the same one are its replicas and share its load.
// Place: between calls of a layer; the result says which weights go to which slot.
// Letters: E logical experts, P physical experts, R ranks.
// Thread-safety: a function without state.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "moebius/api.h"

namespace moebius MOEBIUS_API {

inline constexpr int64_t kMostRebalanced = 1 << 20;  // layers, experts and ranks

struct RebalanceOptions {
  int64_t num_physical = 0;  // P, at least E
  int64_t num_groups = 1;    // groups of neighbouring experts that are best kept on one node
  int64_t num_nodes = 1;
  int64_t num_ranks = 1;  // R
  std::string_view policy = "deepseek";
};

// Physical experts are numbered rank by rank, as in ExpertPlacement::linear(P, R).
struct Rebalanced {
  std::vector<int64_t> physical_to_logical;  // [layers, P]
  std::vector<int64_t> replica_index;        // [layers, P]: which replica of its expert, from 0
  std::vector<int64_t> replica_count;        // [layers, E]: each at least 1
};

// load [layers, E]: each finite and at least 0.
// The policy "deepseek" gives what DeepSeek's EPLB gives, and computes in f32 as that does.  One
// after the other, the P - E replicas go to the expert with the largest load per replica.  Physical
// experts are then packed into ranks, heaviest first, each into the lightest rank that has room.
// Where the nodes divide groups, physical experts and ranks, and the groups divide the experts,
// groups are packed into nodes first, and the rest is done within each node; otherwise the whole is
// one node.  P need not be a multiple of R.
// Throws InvalidArgument, with both values, for what the fields above exclude, more layers,
// experts or ranks than kMostRebalanced, and a policy that does not exist.
Rebalanced rebalance(std::span<const float> load,
                     int64_t num_experts,
                     const RebalanceOptions& options);

}  // namespace moebius
