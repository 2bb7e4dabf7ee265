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

#include "comm/device/device_arena.h"
#include "comm/device/meeting.h"
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
    can_be_captured_ = host.topology().num_nodes() > 1
                           ? Support::no("ranks of several nodes exchange rows through their hosts")
                           : most_can_replay(host, num_here, queues);
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
    if (can_be_captured_.ok) {
      const int64_t bytes = Meeting::window_bytes(host.size());
      meeting_ = std::make_unique<Meeting>(host, device, map_window(host, "meetings", bytes));
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
  // on once all ranks have copied.  In graphs streams meet for both, since an event of another
  // rank's graph may have been recorded by an earlier launch.
  void exchange_on(const Stream& stream,
                   Group& host,
                   std::string_view op,
                   const DeviceBlocks& blocks) override {
    const bool is_captured = launch_on(stream) == Launch::kCaptured;
    if (is_captured && meeting_ == nullptr) {
      throw Unsupported(fmt::format("{} in a graph: {}", op, can_be_captured_.reason));
    }
    const Event ready = is_captured ? Event() : stream.record();
    const auto all = share(
        host, op,
        std::make_shared<const Posted>(Posted{blocks.sends, device_.index, is_captured, ready}));
    expect_all_captured(all, op);
    if (is_captured) {
      meeting_->enqueue(stream);
    }
    for (int peer = 0; peer < host.size(); ++peer) {
      const Posted& posted = *all[static_cast<size_t>(peer)];
      stream.wait(posted.ready);
      copy_blocks(posted.sends.of(host.rank()), posted.index, blocks.recvs.of(peer), stream);
    }
    if (is_captured) {
      return meeting_->enqueue(stream);
    }
    for (const auto& copied : share(host, op, std::make_shared<const Event>(stream.record()))) {
      stream.wait(*copied);
    }
  }

  bool has_given_up() const override { return meeting_ != nullptr && meeting_->has_failed(); }
  Support can_be_captured() const override { return can_be_captured_; }

 private:
  // This is what a rank tells the others of an exchange.
  struct Posted {
    BlocksByPeer<SendBlock> sends;
    int index;  // of the sender's GPU
    bool is_captured;
    Event ready;  // complete where it is captured
  };

  // Every rank sees what all have posted, so all throw or none.
  static void expect_all_captured(const std::vector<std::shared_ptr<const Posted>>& all,
                                  std::string_view op) {
    for (size_t rank = 1; rank < all.size(); ++rank) {
      expect(all[rank]->is_captured == all.front()->is_captured, [&] {
        return fmt::format(
            "{}: rank {} {} a graph and rank 0 {}, expected all ranks to do the same", op, rank,
            all[rank]->is_captured ? "records" : "does not record",
            all.front()->is_captured ? "does" : "does not");
      });
    }
  }

  // Whether the ranks of the most crowded GPU can replay graphs side by side.
  static Support most_can_replay(Group& host, int num_here, int queues) {
    return can_replay_on_one_gpu(static_cast<int>(all_reduce_max(host, "ranks on a GPU", num_here)),
                                 queues);
  }

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
  Support can_be_captured_;
  std::unique_ptr<Meeting> meeting_;  // null where exchanges cannot be captured
};

}  // namespace

std::unique_ptr<DeviceProvider> make_peer_access(Group& host, Device device) {
  return std::make_unique<PeerAccess>(host, device);
}

}  // namespace moebius::comm
