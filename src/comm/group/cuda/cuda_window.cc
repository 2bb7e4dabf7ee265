// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/cuda/cuda_window.h"

#include <utility>

#include "core/allocate.h"
#include "core/cuda/runtime.h"

namespace moebius::comm {

namespace {

std::shared_ptr<void> to_table(const std::vector<std::byte*>& peers, int index) {
  const auto bytes = static_cast<int64_t>(peers.size() * sizeof(std::byte*));
  std::shared_ptr<void> table = allocate(bytes, Device::cuda(index));
  cuda::copy_now(table.get(), peers.data(), bytes, index);
  return table;
}

}  // namespace

CudaWindow::CudaWindow(int rank,
                       Device device,
                       int64_t bytes,
                       std::vector<std::byte*> peers,
                       std::shared_ptr<const void> owner)
    : PeerWindow(rank, bytes, peers, std::move(owner)), table_(to_table(peers, device.index)) {}

std::byte* const* CudaWindow::device_peers() const {
  return static_cast<std::byte* const*>(table_.get());
}

}  // namespace moebius::comm
