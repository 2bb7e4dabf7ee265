// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks of one process hand objects to each other.
#pragma once

#include <cassert>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/group/blocks.h"
#include "moebius/group.h"

namespace moebius::comm {

// Collective.  Returns every rank's object, by rank.  An object lives until the last rank has
// released it.
// REQUIRES: group.shares_address_space().
template <typename T>
std::vector<std::shared_ptr<T>> share(Group& group,
                                      std::string_view op,
                                      const std::shared_ptr<T>& mine) {
  assert(group.shares_address_space());
  BlockLists blocks;
  for (int peer = 0; peer < group.size(); ++peer) {
    blocks.add({peer, &mine, sizeof(mine)}, {peer, nullptr, sizeof(mine)});
  }
  std::vector<std::shared_ptr<T>> all;
  const auto read = [&](std::span<const std::byte* const> shown) {
    for (const std::byte* block : shown) {
      all.push_back(*reinterpret_cast<const std::shared_ptr<T>*>(block));
    }
  };
  group.exchange(op, blocks.sends, blocks.recvs, read);
  return all;
}

// The addresses of memory by rank, nullptr for ranks of other nodes.
template <typename T>
std::vector<std::byte*> addresses_of(const std::vector<std::shared_ptr<T>>& memories,
                                     const Topology& topology) {
  std::vector<std::byte*> addresses;
  for (int rank = 0; rank < topology.size; ++rank) {
    void* memory = memories[static_cast<size_t>(rank)].get();
    addresses.push_back(topology.same_node(rank) ? static_cast<std::byte*>(memory) : nullptr);
  }
  return addresses;
}

}  // namespace moebius::comm
