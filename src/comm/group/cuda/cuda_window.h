// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// CudaWindow: a window of GPU memory.  Its addresses are known to the host, and to kernels as a
// table.
#pragma once

#include <memory>
#include <vector>

#include "comm/group/peer_window.h"

namespace moebius::comm {

class CudaWindow final : public PeerWindow {
 public:
  CudaWindow(int rank,
             Device device,
             int64_t bytes,
             std::vector<std::byte*> peers,
             std::shared_ptr<const void> owner);

  std::byte* const* device_peers() const override;

 private:
  const std::shared_ptr<void> table_;
};

}  // namespace moebius::comm
