// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Which ranks a split puts together, and in which order.
#pragma once

#include <span>
#include <vector>

#include "moebius/group.h"

namespace moebius::comm {

// What a rank asks for.
struct SplitWish {
  int color = 0;
  int key = 0;
};

// The sub-group that a rank becomes part of.
struct SubGroup {
  std::vector<int> members;  // ranks of the group that is split, by their rank in the sub-group;
                             // empty: this rank is in none
  Topology topology;         // of the sub-group; a node is what is left of a node

  bool is_none() const { return members.empty(); }
  int size() const { return static_cast<int>(members.size()); }
  int first() const { return members.front(); }
};

// wishes [topology.size], by rank.  Throws InvalidArgument, for the same wishes on every rank, when
// ranks of a node would not be neighbours.
SubGroup plan_split(const Topology& topology, std::span<const SplitWish> wishes);

}  // namespace moebius::comm
