// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Handing objects to the other ranks of a process.
#pragma once

#include <cassert>
#include <memory>
#include <string_view>
#include <vector>

#include "moebius/group.h"

namespace moebius::comm {

// Collective: every rank's object, by rank; it lives until the last rank has let go of it.
// REQUIRES: group.shares_address_space().
template <typename T>
std::vector<std::shared_ptr<T>> share(Group& group,
                                      std::string_view op,
                                      const std::shared_ptr<T>& mine) {
  assert(group.shares_address_space());
  std::vector<SendBlock> sends;
  std::vector<RecvBlock> recvs;
  for (int peer = 0; peer < group.size(); ++peer) {
    sends.push_back({peer, &mine, sizeof(mine)});
    recvs.push_back({peer, nullptr, sizeof(mine)});
  }
  std::vector<std::shared_ptr<T>> all;
  group.exchange(op, sends, recvs, [&](std::span<const std::byte* const> blocks) {
    for (const std::byte* block : blocks) {
      all.push_back(*reinterpret_cast<const std::shared_ptr<T>*>(block));
    }
  });
  return all;
}

}  // namespace moebius::comm
