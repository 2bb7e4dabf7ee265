// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Windows of NCCL's symmetric memory.  Each node has a communicator of its own, so that pretended
// nodes behave as real ones.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/group/cuda/cuda_group.h"
#include "comm/group/cuda/cuda_window.h"
#include "comm/group/cuda/kept_windows.h"
#include "comm/group/nccl/communicator.h"
#include "comm/group/nccl/library.h"
#include "comm/group/nccl/lsa_pointers.h"
#include "comm/group/nccl/version.h"
#include "comm/group/peer_group.h"
#include "core/cuda/runtime.h"
#include "moebius/deadline.h"
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
  // `adopted` is the caller's communicator of all ranks, or null.
  NcclWindows(Group& host, Device device, ncclComm_t adopted) : device_(device) {
    const Topology& topology = host.topology();
    const int begin = topology.node_begin[static_cast<size_t>(topology.node())];
    const int end = begin + topology.node_size(topology.node());
    all_ = adopted != nullptr ? std::make_shared<Communicator>(adopted)
                              : std::make_shared<Communicator>(host, 0, host.size());
    node_ = topology.num_nodes() == 1 ? all_ : std::make_shared<Communicator>(host, begin, end);
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
    if (!nccl_library().is_of_headers && num_made_ == 1) {
      expect_layout(host, op, peers);
    }
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
  Support can_be_captured() const override {
    return Support::no("exchanges of NCCL get their deadline from the host");
  }

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

  // Where the library's version is not that of the headers, the addresses could be of something
  // else.  So each rank writes a word, and looks for those of its peers.
  void expect_layout(Group& host, std::string_view op, std::span<std::byte* const> peers) const {
    constexpr int64_t kSign = 0x6d6f656269757300;
    const auto word_of = [](int rank) { return kSign + rank; };
    const int64_t own = word_of(host.rank());
    bool is_right = true;
    cuda::copy_now(registrations_->add(0).memory, &own, sizeof(own), device_.index);
    host.barrier(op);
    for (int peer = 0; peer < host.size(); ++peer) {
      std::byte* const address = peers[static_cast<size_t>(peer)];
      cudaPointerAttributes attributes{};
      if (address == nullptr) {
        continue;  // of another node
      }
      int64_t seen = 0;
      if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess ||
          attributes.type != cudaMemoryTypeDevice) {
        (void)cudaGetLastError();
        is_right = false;
        continue;
      }
      cuda::copy_now(&seen, address, sizeof(seen), device_.index);
      is_right = is_right && seen == word_of(peer);
    }
    const bool are_all_right = all_reduce_max(host, op, is_right ? 0 : 1) == 0;
    cuda::fill_zero_now(registrations_->add(0).memory, sizeof(own), device_.index);
    if (!are_all_right) {
      int found = 0;
      nccl_library().get_version(&found);
      throw Unsupported(fmt::format(
          "rank {}: NCCL {} lays out its windows in another way than NCCL {}, which this was built "
          "with",
          host.rank(), version_name(found), version_name(NCCL_VERSION_CODE)));
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

namespace {

void expect_fine(ncclResult_t result, std::string_view call) {
  if (!comm::is_fine(result)) {
    throw Error(fmt::format("{}: {}", call, comm::nccl_library().get_error_string(result)));
  }
}

// What the caller's communicator says of this rank.
struct Place {
  int rank = 0;
  int size = 1;
  int index = 0;  // of its GPU
};
Place place_in(ncclComm_t comm) {
  const comm::NcclLibrary& nccl = comm::nccl_library();
  Place place;
  expect_fine(nccl.comm_user_rank(comm, &place.rank), "ncclCommUserRank");
  expect_fine(nccl.comm_count(comm, &place.size), "ncclCommCount");
  expect_fine(nccl.comm_cu_device(comm, &place.index), "ncclCommCuDevice");
  return place;
}

// Gathers bytes of every rank through the GPUs.
void gather_through(ncclComm_t comm,
                    const Place& place,
                    std::chrono::milliseconds timeout,
                    const void* in,
                    int64_t bytes,
                    void* out) {
  const comm::NcclLibrary& nccl = comm::nccl_library();
  const Stream stream = Stream::cuda(place.index);
  const Device device = Device::cuda(place.index);
  const Tensor sent = Tensor::empty({bytes}, DType::kU8, device);
  const Tensor received = Tensor::empty({bytes * place.size}, DType::kU8, device);
  cuda::copy_now(sent.raw(), in, bytes, place.index);
  ncclResult_t result =
      nccl.all_gather(sent.raw(), received.raw(), static_cast<size_t>(bytes), ncclUint8, comm,
                      static_cast<cudaStream_t>(stream.native_handle()));
  expect_fine(result, "ncclAllGather");
  const Event done = stream.record();
  for (const Deadline deadline = Deadline::after(timeout);
       result == ncclInProgress || !done.is_complete();) {
    expect_fine(nccl.comm_get_async_error(comm, &result), "ncclCommGetAsyncError");
    expect_fine(result, "ncclAllGather");
    if (deadline.expired()) {
      throw CommError(fmt::format("rank {}: make_nccl_group, epoch 0: not every rank came within "
                                  "{} ms",
                                  place.rank, timeout.count()),
                      place.rank, -1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  cuda::copy_now(out, received.raw(), bytes * place.size, place.index);
}

}  // namespace

std::unique_ptr<Group> make_nccl_group(std::unique_ptr<Group>&& host, Device device, void* comm) {
  expect(device.is_cuda(), "the device of a rank of a nccl group is cpu, expected a GPU");
  expect_usable(device);
  cuda::make_current(device.index);
  const auto adopted = static_cast<ncclComm_t>(comm);
  if (adopted != nullptr) {
    const Place place = place_in(adopted);
    expect_eq(place.size, host->size(), "ranks of the NCCL communicator");
    expect_eq(place.rank, host->rank(), "this rank in the NCCL communicator");
    expect_eq(place.index, device.index, "GPU of the NCCL communicator");
  }
  auto windows = std::make_unique<comm::NcclWindows>(*host, device, adopted);
  return std::make_unique<comm::CudaGroup>(std::move(host), device, std::move(windows));
}

std::unique_ptr<Group> make_nccl_group(void* comm, std::chrono::milliseconds timeout) {
  expect(comm != nullptr, "make_nccl_group: the communicator is null");
  const auto adopted = static_cast<ncclComm_t>(comm);
  const Place place = place_in(adopted);
  const auto deadline = comm::resolve_timeout(timeout);
  cuda::make_current(place.index);
  auto host = make_process_group(
      {.rank = place.rank,
       .size = place.size,
       .all_gather = [&](const void* in, int64_t bytes,
                         void* out) { gather_through(adopted, place, deadline, in, bytes, out); },
       .timeout = deadline});
  return make_nccl_group(std::move(host), Device::cuda(place.index), comm);
}

}  // namespace moebius
