// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Windows of NCCL's symmetric memory.  Each node has a communicator of its own, so that pretended
// nodes behave as real ones.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/group/cuda/cuda_group.h"
#include "comm/group/cuda/cuda_window.h"
#include "comm/group/cuda/kept_windows.h"
#include "comm/group/nccl/communicator.h"
#include "comm/group/nccl/library.h"
#include "comm/group/nccl/lsa_pointers.h"
#include "core/cuda/runtime.h"
#include "moebius/log.h"

namespace moebius {
namespace comm {

namespace {

bool is_fine(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress;
}

struct Registration {
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
};

using Registrations = KeptWindows<Registration>;

std::shared_ptr<Registrations> make_registrations(std::shared_ptr<Communicator> node) {
  return std::make_shared<Registrations>([node = std::move(node)](const Registration& given) {
    const NcclLibrary& nccl = nccl_library();
    const auto log_failure = [&](std::string_view call, ncclResult_t result) {
      if (!is_fine(result)) {
        log(LogLevel::kError, fmt::format("{}: {}", call, nccl.get_error_string(result)));
      }
    };
    // Why this is not under the communicator's lock: it may wait for the GPU, and so for work that
    // ends only when the communicator is given up.
    if (given.window != nullptr && !node->is_broken()) {
      log_failure("ncclCommWindowDeregister",
                  nccl.comm_window_deregister(node->get(), given.window));
    }
    if (given.memory != nullptr) {
      log_failure("ncclMemFree", nccl.mem_free(given.memory));
    }
  });
}

class NcclWindows final : public DeviceProvider {
 public:
  NcclWindows(Group& host, Device device) : device_(device) {
    const Topology& topology = host.topology();
    const int begin = topology.node_begin[static_cast<size_t>(topology.node())];
    node_ =
        std::make_shared<Communicator>(host, begin, begin + topology.node_size(topology.node()));
    all_ = topology.num_nodes() == 1 ? node_ : std::make_shared<Communicator>(host, 0, host.size());
    registrations_ = make_registrations(node_);
  }

  std::string_view name() const override { return "nccl"; }

  std::unique_ptr<Window> map_window(Group& host, std::string_view op, int64_t bytes) override {
    cuda::make_current(device_.index);
    registrations_->give_back_dropped(host, op);
    const NcclLibrary& nccl = nccl_library();
    const auto call = [&](std::string_view what, auto make) {
      node_->call(host, fmt::format("{}: {}", op, what), make);
    };
    const int64_t id = num_made_++;
    Registration& own = registrations_->add(id);  // it stays even when this call fails
    const size_t size =
        (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + NCCL_WIN_REQUIRED_ALIGNMENT - 1) /
        NCCL_WIN_REQUIRED_ALIGNMENT * NCCL_WIN_REQUIRED_ALIGNMENT;
    call(fmt::format("ncclMemAlloc of {} bytes", size), [&] {
      const ncclResult_t result = nccl.mem_alloc(&own.memory, size);
      if (result == ncclSuccess) {
        return result;
      }
      cuda::give_back_unused_memory(device_.index);
      return nccl.mem_alloc(&own.memory, size);
    });
    cuda::fill_zero_now(own.memory, static_cast<int64_t>(size), device_.index);
    // After this all ranks have come, and the memory of all is zero.
    host.barrier(op);
    call("ncclCommWindowRegister", [&] {
      return nccl.comm_window_register(node_->get(), own.memory, size, &own.window,
                                       NCCL_WIN_COLL_SYMMETRIC);
    });
    std::shared_ptr<void> owner(own.memory, [all = registrations_, id](void*) { all->drop(id); });
    int num_reached = 0;
    call("ncclTeamLsa", [&] {
      num_reached = team_size(own.window);
      return ncclSuccess;
    });
    expect_reachable(host, num_reached);

    const int node_size = host.topology().node_size(host.topology().node());
    const auto reached = lsa_pointers(own.window, node_size, device_);
    std::vector<std::byte*> peers(static_cast<size_t>(host.size()), nullptr);
    std::copy(reached.begin(), reached.end(), peers.begin() + node_->begin());
    // After this the memory is mapped on all ranks: a peer may store to it once this rank has
    // returned.
    host.barrier(op);
    return std::make_unique<CudaWindow>(host.rank(), device_, bytes, std::move(peers),
                                        std::move(owner));
  }

  void exchange_on(const Stream& stream,
                   Group& host,
                   std::string_view op,
                   const DeviceBlocks& blocks) override {
    cuda::make_current(device_.index);
    copy_blocks(blocks.sends.of(host.rank()), device_.index, blocks.recvs.of(host.rank()), stream);
    const NcclLibrary& nccl = nccl_library();
    const auto to = static_cast<cudaStream_t>(stream.native_handle());
    const Event before = stream.record();
    all_->call(host, fmt::format("{}: ncclSend and ncclRecv", op), [&] {
      ncclResult_t result = nccl.group_start();
      for (int peer = 0; peer < host.size(); ++peer) {
        if (peer == host.rank()) {
          continue;
        }
        for (const SendBlock& block : blocks.sends.of(peer)) {
          result = is_fine(result) ? nccl.send(block.data, static_cast<size_t>(block.bytes),
                                               ncclUint8, peer, all_->get(), to)
                                   : result;
        }
        for (const RecvBlock& block : blocks.recvs.of(peer)) {
          result = is_fine(result) ? nccl.recv(block.data, static_cast<size_t>(block.bytes),
                                               ncclUint8, peer, all_->get(), to)
                                   : result;
        }
      }
      const ncclResult_t ended = nccl.group_end();
      return is_fine(result) ? ended : result;
    });
    all_->look_after(before, stream, host.timeout());
  }
  bool has_given_up() const override { return all_->is_broken(); }

 private:
  // How many ranks' memory this rank reaches.  REQUIRES: it runs within node_->call().  Where GPUs
  // cannot reach each other, NCCL registers the memory for its own use, gives an odd address in
  // place of a window, and returns success.
  int team_size(ncclWindow_t window) const {
    const auto address = reinterpret_cast<uintptr_t>(window);
    return address == 0 || address % 2 != 0 ? 0 : nccl_library().team_lsa(node_->get()).nRanks;
  }

  static void expect_reachable(const Group& host, int team) {
    const int node_size = host.topology().node_size(host.topology().node());
    if (team < node_size) {
      throw Unsupported(fmt::format(
          "rank {}: NCCL's symmetric memory reaches {} of the {} GPUs of this node: it needs peer "
          "access between all pairs (NVLink or PCIe), and neither NCCL_CUMEM_ENABLE=0 nor "
          "NCCL_WIN_ENABLE=0",
          host.rank(), team, node_size));
    }
  }

  const Device device_;
  std::shared_ptr<Communicator> node_;  // this rank's node
  std::shared_ptr<Communicator> all_;   // every rank
  std::shared_ptr<Registrations> registrations_;
  int64_t num_made_ = 0;
};

}  // namespace

}  // namespace comm

std::unique_ptr<Group> make_nccl_group(std::unique_ptr<Group>&& host, Device device) {
  expect(device.is_cuda(), "the device of a rank of a nccl group is cpu, expected a GPU");
  expect_usable(device);
  cuda::make_current(device.index);
  auto windows = std::make_unique<comm::NcclWindows>(*host, device);
  return std::make_unique<comm::CudaGroup>(std::move(host), device, std::move(windows));
}

}  // namespace moebius
