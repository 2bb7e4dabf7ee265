// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Windows of ranks that are processes of one machine, with a GPU each or some on one GPU.  Each
// rank maps the memory of the others.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/group/cuda/cuda_group.h"
#include "comm/group/cuda/cuda_window.h"
#include "comm/group/cuda/ipc_memory.h"
#include "comm/group/cuda/kept_windows.h"
#include "core/ceil_div.h"
#include "core/cuda/runtime.h"

namespace moebius::comm {

namespace {

constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) {
  return ceil_div(bytes, kAlignment) * kAlignment;
}

// Own memory that this rank has unmapped from its peers, but which they may still have mapped. What
// is left at the end is freed without asking them: they have left, too, or will not use it again.
struct Unmapped {
  std::vector<IpcMemory> all;

  ~Unmapped() { free_all(); }
  void free_all() {
    for (IpcMemory& memory : all) {
      memory.free_own();
    }
    all.clear();
  }
};

class IpcAccess final : public DeviceProvider {
 public:
  IpcAccess(Group& host, Device device)
      : device_(device),
        unmapped_(std::make_shared<Unmapped>()),
        windows_(std::make_shared<KeptWindows<IpcMemory>>(
            [unmapped = unmapped_](const IpcMemory& memory) {
              unmapped->all.push_back(memory);
              unmapped->all.back().unmap_peers();
            })) {
    // All ranks find out now whether they reach each other.
    constexpr std::string_view kOp = "access to the GPUs of peers";
    IpcMemory trial;
    const std::string refusal = trial.map(host, kOp, 1, device);
    trial.unmap_peers();
    host.barrier(kOp);
    trial.free_own();
    if (!refusal.empty()) {
      throw Unsupported("GPUs of processes: " + refusal);
    }
  }

  std::string_view name() const override { return "peer"; }
  Support can_be_captured() const override {
    return Support::no("an exchange among processes waits on the host for the stream's work");
  }

  std::unique_ptr<Window> map_window(Group& host, std::string_view op, int64_t bytes) override {
    const auto [memory, owner] = make_memory(host, op, bytes);
    std::vector<std::byte*> peers = memory->peers;
    for (int rank = 0; rank < host.size(); ++rank) {
      if (!host.topology().same_node(rank)) {
        peers[static_cast<size_t>(rank)] = nullptr;  // of a pretended node
      }
    }
    return std::make_unique<CudaWindow>(host.rank(), device_, bytes, std::move(peers), owner);
  }

  // Blocks are in memory that peers do not map, so they pass through memory that they do.  Why the
  // host waits: a stream that waited for the work of another process would do so for ever when that
  // process is killed.  The host waits for this rank's own work only, whose kernels have deadlines.
  void exchange_on(const Stream& stream,
                   Group& host,
                   std::string_view op,
                   const DeviceBlocks& blocks) override {
    // The bytes for each peer lie one after the other, in order of ranks.
    std::vector<int64_t> begins = {0};
    for (int peer = 0; peer < host.size(); ++peer) {
      int64_t end = begins.back();
      for (const SendBlock& block : blocks.sends.of(peer)) {
        end += peer == host.rank() ? 0 : aligned(block.bytes);
      }
      begins.push_back(end);
    }
    make_passage(host, op, all_reduce_max(host, op, begins.back()));
    for (int peer = 0; peer < host.size(); ++peer) {
      if (peer == host.rank()) {
        copy_blocks(blocks.sends.of(peer), device_.index, blocks.recvs.of(peer), stream);
        continue;
      }
      std::byte* to =
          passage_.peers[static_cast<size_t>(host.rank())] + begins[static_cast<size_t>(peer)];
      for (const SendBlock& block : blocks.sends.of(peer)) {
        cuda::copy_between(to, device_.index, block.data, device_.index, block.bytes,
                           stream.native_handle(), device_.index);
        to += aligned(block.bytes);
      }
    }
    stream.synchronize();
    std::vector<int64_t> all(static_cast<size_t>(host.size()) * begins.size());
    all_gather_bytes(host, op, begins.data(), static_cast<int64_t>(begins.size() * sizeof(int64_t)),
                     all.data());
    for (int peer = 0; peer < host.size(); ++peer) {
      if (peer == host.rank()) {
        continue;
      }
      const size_t first = static_cast<size_t>(peer) * begins.size();
      const std::byte* from =
          passage_.peers[static_cast<size_t>(peer)] + all[first + static_cast<size_t>(host.rank())];
      for (const RecvBlock& block : blocks.recvs.of(peer)) {
        cuda::copy_between(block.data, device_.index, from, device_.index, block.bytes,
                           stream.native_handle(), device_.index);
        from += aligned(block.bytes);
      }
    }
    stream.synchronize();
    host.barrier(op);  // what was sent has been copied
  }

 private:
  // Collective.  The owner tells `windows_` when the memory is needed no more.
  std::pair<const IpcMemory*, std::shared_ptr<const void>> make_memory(Group& host,
                                                                       std::string_view op,
                                                                       int64_t bytes) {
    windows_->give_back_dropped(host, op);
    const int64_t id = num_made_++;
    IpcMemory& memory = windows_->add(id);  // it stays even when this call fails
    const std::string refusal = memory.map(host, op, bytes, device_);
    unmapped_->free_all();  // every rank has unmapped it before it came to map()
    std::shared_ptr<const void> owner(memory.own,
                                      [all = windows_, id](const void*) { all->drop(id); });
    if (!refusal.empty()) {
      throw Error(fmt::format("{}: {}", op, refusal));
    }
    return {&memory, owner};
  }

  // Collective.  Every rank has passed the same `bytes`.
  void make_passage(Group& host, std::string_view op, int64_t bytes) {
    if (bytes <= passage_bytes_) {
      return;
    }
    passage_bytes_ = 0;
    passage_owner_.reset();
    const auto [memory, owner] = make_memory(host, op, bytes + bytes / 4);
    passage_ = *memory;
    passage_owner_ = owner;
    passage_bytes_ = bytes + bytes / 4;
  }

  const Device device_;
  const std::shared_ptr<Unmapped> unmapped_;
  const std::shared_ptr<KeptWindows<IpcMemory>> windows_;
  int64_t num_made_ = 0;
  // The memory through which exchanges pass.
  IpcMemory passage_;
  std::shared_ptr<const void> passage_owner_;
  int64_t passage_bytes_ = 0;
};

}  // namespace

std::unique_ptr<DeviceProvider> make_ipc_access(Group& host, Device device) {
  return std::make_unique<IpcAccess>(host, device);
}

}  // namespace moebius::comm
