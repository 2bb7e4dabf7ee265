// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// CudaWindow: the addresses of a window of GPU memory, on the host and as a table for kernels.
#pragma once

#include <memory>
#include <vector>

#include "moebius/group.h"

namespace moebius::comm {

class CudaWindow final : public Window {
 public:
  // peers[r]: the memory of rank r as this rank's GPU sees it, nullptr on other nodes.
  // `owner` keeps all of it alive.
  CudaWindow(int rank,
             Device device,
             int64_t bytes,
             std::vector<std::byte*> peers,
             std::shared_ptr<void> owner);

  int64_t bytes() const override { return bytes_; }
  std::byte* local() const override { return peer(rank_); }
  std::byte* peer(int rank) const override { return peers_[static_cast<size_t>(rank)]; }
  std::byte* const* device_peers() const override;

 private:
  const int rank_;
  const int64_t bytes_;
  const std::vector<std::byte*> peers_;
  const std::shared_ptr<void> owner_;
  const std::shared_ptr<void> table_;
};

}  // namespace moebius::comm
