// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/cuda/ipc_memory.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>

#include "comm/group/failure.h"
#include "core/ceil_div.h"
#include "core/cuda/check.h"
#include "core/cuda/outside_of_captures.h"
#include "core/cuda/runtime.h"

namespace moebius::comm {

namespace {

using Refusal = FixedText<512>;

// What a rank tells the others of its memory.
struct Shown {
  cudaIpcMemHandle_t handle{};
  Refusal refusal;  // why there is none
};

// Calls `step` and returns why it failed, if it did.
template <typename Step>
Refusal refusal_of(const Step& step) {
  try {
    step();
  } catch (const Error& error) {
    return std::string_view(error.what());
  }
  return {};
}

std::string first_of(const std::vector<Refusal>& refusals) {
  for (size_t rank = 0; rank < refusals.size(); ++rank) {
    if (!refusals[rank].empty()) {
      return fmt::format("rank {}: {}", rank, refusals[rank].view());
    }
  }
  return "";
}

}  // namespace

std::string IpcMemory::map(Group& host, std::string_view op, int64_t bytes, Device device) {
  // Why whole blocks: a smaller allocation shares its block with others, which peers would map,
  // too.
  constexpr int64_t kBlock = int64_t{2} << 20;
  index = device.index;
  const cuda::DeviceGuard guard(index);
  const cuda::OutsideOfCaptures outside;
  const auto size = static_cast<size_t>(ceil_div(std::max<int64_t>(bytes, 1), kBlock) * kBlock);
  Shown shown;
  shown.refusal = refusal_of([&] {
    cudaError_t status = cudaMalloc(&own, size);
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      cuda::give_back_unused_memory(index);
      status = cudaMalloc(&own, size);
    }
    cuda::check_cuda(status, fmt::format("cudaMalloc of {} bytes", size));
    cuda::fill_zero_now(own, static_cast<int64_t>(size), index);
    cuda::check_cuda(cudaIpcGetMemHandle(&shown.handle, own), "cudaIpcGetMemHandle");
  });
  const auto num_ranks = static_cast<size_t>(host.size());
  std::vector<Shown> all(num_ranks);
  // After this the memory of all ranks is zero.
  all_gather_bytes(host, op, &shown, sizeof(shown), all.data());
  std::vector<Refusal> refusals(num_ranks);
  std::transform(all.begin(), all.end(), refusals.begin(),
                 [](const Shown& each) { return each.refusal; });
  if (std::string refusal = first_of(refusals); !refusal.empty()) {
    return refusal;
  }

  peers.assign(num_ranks, nullptr);
  const Refusal refusal = refusal_of([&] {
    for (size_t peer = 0; peer < num_ranks; ++peer) {
      void* mapped = own;
      if (peer != static_cast<size_t>(host.rank())) {
        cuda::check_cuda(
            cudaIpcOpenMemHandle(&mapped, all[peer].handle, cudaIpcMemLazyEnablePeerAccess),
            fmt::format("cudaIpcOpenMemHandle of rank {}", peer));
      }
      peers[peer] = static_cast<std::byte*>(mapped);
    }
  });
  // After this the memory is mapped on all ranks: a peer may store to it.
  all_gather_bytes(host, op, &refusal, sizeof(refusal), refusals.data());
  return first_of(refusals);
}

void IpcMemory::unmap_peers() noexcept {
  try {
    const cuda::DeviceGuard guard(index);
    for (std::byte* peer : peers) {
      if (peer != nullptr && peer != own) {
        cuda::log_cuda_error(cudaIpcCloseMemHandle(peer), "cudaIpcCloseMemHandle");
      }
    }
  } catch (const Error&) {
    // The process ends or the device has failed for good, and its memory is gone anyway.
  }
  peers.clear();
}

void IpcMemory::free_own() noexcept {
  try {
    const cuda::DeviceGuard guard(index);
    cuda::log_cuda_error(cudaFree(own), "cudaFree");
  } catch (const Error&) {
    // As above.
  }
  own = nullptr;
}

}  // namespace moebius::comm
