// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace moebius::comm {

namespace {

// The nodes of a sub-group.  Throws when one of them would be in several pieces.
std::vector<int> nodes_of(const Topology& whole, const std::vector<int>& members) {
  std::vector<int> node_begin = {0};
  std::vector<int> last_of_node(static_cast<size_t>(whole.num_nodes()), -1);
  for (size_t i = 0; i < members.size(); ++i) {
    const int rank = members[i];
    int& last = last_of_node[static_cast<size_t>(whole.node_of(rank))];
    if (i > 0 && last != members[i - 1]) {
      expect(last < 0, [&] {
        return fmt::format(
            "split: ranks {} and {} share a node and must be neighbours in a sub-group, but their "
            "keys put rank {} between them",
            last, rank, members[i - 1]);
      });
      node_begin.push_back(static_cast<int>(i));
    }
    last = rank;
  }
  node_begin.push_back(static_cast<int>(members.size()));
  return node_begin;
}

}  // namespace

SubGroup plan_split(const Topology& topology, std::span<const SplitWish> wishes) {
  std::map<int, std::vector<int>> members_of;  // by color
  for (int rank = 0; rank < topology.size; ++rank) {
    members_of[wishes[static_cast<size_t>(rank)].color].push_back(rank);
  }
  SubGroup own;
  for (auto& [color, members] : members_of) {
    if (color < 0) {
      continue;
    }
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
      return wishes[static_cast<size_t>(a)].key < wishes[static_cast<size_t>(b)].key;
    });
    // All colors are checked, so that every rank refuses what one of them must refuse.
    std::vector<int> node_begin = nodes_of(topology, members);
    const auto at = std::find(members.begin(), members.end(), topology.rank);
    if (at != members.end()) {
      own.topology = {.rank = static_cast<int>(at - members.begin()),
                      .size = static_cast<int>(members.size()),
                      .node_begin = std::move(node_begin)};
      own.members = std::move(members);
    }
  }
  return own;
}

}  // namespace moebius::comm
