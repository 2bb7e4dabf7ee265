// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Windows of ranks that are threads of one process.  They load and store each other's GPU memory at
// its own address.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "comm/group/cuda/cuda_group.h"
#include "comm/group/cuda/cuda_window.h"
#include "comm/group/share.h"
#include "comm/group/shared_device.h"
#include "core/cuda/runtime.h"
#include "moebius/log.h"

namespace moebius::comm {

namespace {

using Memory = std::shared_ptr<void>;

class PeerAccess final : public DeviceProvider {
 public:
  PeerAccess(Group& host, Device device) : device_(device) {
    const auto devices = share(host, "GPUs of the ranks", std::make_shared<const Device>(device));
    int num_here = 0;
    bool is_first_here = true;
    for (int peer = 0; peer < host.size(); ++peer) {
      const bool is_here = *devices[static_cast<size_t>(peer)] == device;
      num_here += is_here;
      is_first_here = is_first_here && (peer >= host.rank() || !is_here);
      if (host.topology().same_node(peer)) {
        reachable_from_.push_back(devices[static_cast<size_t>(peer)]->index);
      }
    }
    const int queues = cuda::hardware_queues();
    if (is_first_here && num_here > 1 && num_here * kQueuesPerRank > queues) {
      log(LogLevel::kWarn,
          fmt::format(
              "{} ranks share {}, of whose hardware queues CUDA_DEVICE_MAX_CONNECTIONS gives this "
              "process {}: with {} per rank, kernels that wait for each other come to share one, "
              "and expire; it is read once, before the first call of CUDA, and may be {}",
              num_here, to_string(device), queues, kQueuesPerRank, kMaxQueues));
    }
    // All ranks find this out now: a rank that cannot go on must not leave the others waiting
    // later.
    const auto refusal = std::make_shared<const std::string>(try_reach());
    const auto refusals = share(host, "access to the GPUs of peers", refusal);
    for (size_t rank = 0; rank < refusals.size(); ++rank) {
      if (!refusals[rank]->empty()) {
        throw Unsupported(fmt::format("rank {}: {}", rank, *refusals[rank]));
      }
    }
  }

  std::string_view name() const override { return "peer"; }

  std::unique_ptr<Window> map_window(Group& host, std::string_view op, int64_t bytes) override {
    const Memory own = cuda::allocate_shared(bytes, device_.index, reachable_from_);
    cuda::fill_zero_now(own.get(), bytes, device_.index);
    // The memory is zero before any peer gets its address.
    const auto memories = std::make_shared<std::vector<Memory>>(share(host, op, own));
    return std::make_unique<CudaWindow>(host.rank(), device_, bytes,
                                        addresses_of(*memories, host.topology()), memories);
  }

  // The receiver copies once the sender's stream has come to this call.  The sender's stream goes
  // on once all ranks have copied.
  void exchange_on(const Stream& stream,
                   Group& host,
                   std::string_view op,
                   const DeviceBlocks& blocks) override {
    struct Posted {
      BlocksByPeer<SendBlock> sends;
      int index;  // of the sender's GPU
      Event ready;
    };
    const auto all =
        share(host, op,
              std::make_shared<const Posted>(Posted{blocks.sends, device_.index, stream.record()}));
    for (int peer = 0; peer < host.size(); ++peer) {
      const Posted& posted = *all[static_cast<size_t>(peer)];
      stream.wait(posted.ready);
      copy_blocks(posted.sends.of(host.rank()), posted.index, blocks.recvs.of(peer), stream);
    }
    for (const auto& copied : share(host, op, std::make_shared<const Event>(stream.record()))) {
      stream.wait(*copied);
    }
  }

 private:
  std::string try_reach() const {
    try {
      cuda::allocate_shared(1, device_.index, reachable_from_);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  const Device device_;
  std::vector<int> reachable_from_;  // GPUs of the ranks of this node
};

}  // namespace

std::unique_ptr<DeviceProvider> make_peer_access(Group& host, Device device) {
  return std::make_unique<PeerAccess>(host, device);
}

}  // namespace moebius::comm
