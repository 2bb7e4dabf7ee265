// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/bench/gpu/barrier.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/ptx.cuh"

namespace moebius::bench {

namespace {

// Thread r signals rank r, then waits for the signal of rank r.
__device__ void meet(
    std::byte* const* peers, int rank, int num_ranks, uint64_t epoch, uint64_t timeout_ns) {
  const auto peer = static_cast<int>(threadIdx.x);
  if (peer < num_ranks) {
    ptx::st_release_sys(reinterpret_cast<uint64_t*>(peers[peer]) + rank, epoch);
    const auto* word = reinterpret_cast<const uint64_t*>(peers[rank]) + peer;
    const uint64_t start = ptx::globaltimer();
    while (ptx::ld_acquire_sys(word) < epoch && ptx::globaltimer() - start < timeout_ns) {
    }
  }
  __syncthreads();
}

__global__ void barrier_kernel(
    std::byte* const* peers, int rank, int num_ranks, uint64_t lead_ns, uint64_t timeout_ns) {
  uint64_t* epoch = reinterpret_cast<uint64_t*>(peers[rank]) + num_ranks;
  const uint64_t before = *epoch;
  meet(peers, rank, num_ranks, before + 1, timeout_ns);
  const uint64_t start = ptx::globaltimer();
  while (ptx::globaltimer() - start < lead_ns) {
  }
  meet(peers, rank, num_ranks, before + 2, timeout_ns);
  if (threadIdx.x == 0) {
    *epoch = before + 2;
  }
}

}  // namespace

GpuBarrier::GpuBarrier(Group& group)
    : group_(group), window_(group.make_window("barrier of a benchmark", 8 * (group.size() + 1))) {
  cuda::load_kernels(group.device().index, barrier_kernel);
  group.barrier("barrier of a benchmark");
}

void GpuBarrier::launch(const Stream& stream, std::chrono::nanoseconds lead) {
  const cuda::DeviceGuard guard(group_.device().index);
  const auto threads = static_cast<unsigned>(group_.size() + 31) / 32 * 32;
  barrier_kernel<<<1, threads, 0, cuda::as_stream(stream)>>>(
      window_->device_peers(), group_.rank(), group_.size(), static_cast<uint64_t>(lead.count()),
      static_cast<uint64_t>(std::chrono::nanoseconds(group_.timeout()).count()));
  cuda::check_launch("barrier of a benchmark");
}

}  // namespace moebius::bench
