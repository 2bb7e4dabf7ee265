// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/cuda/cuda_group.h"

#include <utility>

#include "comm/peer_group.h"

namespace moebius::comm {

CudaGroup::CudaGroup(std::unique_ptr<Group> host,
                     Device device,
                     std::unique_ptr<WindowProvider> provider)
    : Group(host->topology(), host->timeout()),
      host_(std::move(host)),
      device_(device),
      provider_(std::move(provider)) {}

std::unique_ptr<Window> CudaGroup::make_window(std::string_view op, int64_t bytes) {
  agree_on_window(*host_, op, bytes);
  return provider_->map_window(*host_, op, bytes);
}

std::unique_ptr<Exchange> CudaGroup::start_exchange(std::string_view op,
                                                    std::span<const SendBlock> sends,
                                                    std::span<const RecvBlock> recvs,
                                                    BlockReader reader) {
  return host_->start_exchange(op, sends, recvs, std::move(reader));
}

void CudaGroup::wait_until(std::string_view op,
                           int peer,
                           const std::function<bool()>& ready,
                           const std::function<std::string()>& describe) {
  host_->wait_until(op, peer, ready, describe);
}

}  // namespace moebius::comm
