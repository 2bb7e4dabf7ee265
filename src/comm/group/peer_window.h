// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// PeerWindow: a window whose addresses are known when it is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "moebius/group.h"

namespace moebius::comm {

class PeerWindow : public Window {
 public:
  // peers[r]: the memory of rank r as this rank sees it, nullptr on other nodes.
  // `owner` keeps all of it alive.
  PeerWindow(int rank,
             int64_t bytes,
             std::vector<std::byte*> peers,
             std::shared_ptr<const void> owner)
      : rank_(rank), bytes_(bytes), peers_(std::move(peers)), owner_(std::move(owner)) {}

  int64_t bytes() const override { return bytes_; }
  std::byte* local() const override { return peer(rank_); }
  std::byte* peer(int rank) const override { return peers_[static_cast<size_t>(rank)]; }

 private:
  const int rank_;
  const int64_t bytes_;
  const std::vector<std::byte*> peers_;
  const std::shared_ptr<const void> owner_;
};

}  // namespace moebius::comm
