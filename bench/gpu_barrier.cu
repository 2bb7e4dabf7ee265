// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_barrier.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/ptx.cuh"

namespace moebius::bench {

namespace {

// Thread r tells rank r, then waits for it.
__global__ void barrier_kernel(
    std::byte* const* peers, int rank, int num_ranks, uint64_t epoch, uint64_t timeout_ns) {
  const int peer = static_cast<int>(threadIdx.x);
  if (peer >= num_ranks) {
    return;
  }
  ptx::st_release_sys(reinterpret_cast<uint64_t*>(peers[peer]) + rank, epoch);
  const auto* word = reinterpret_cast<const uint64_t*>(peers[rank]) + peer;
  const uint64_t start = ptx::globaltimer();
  while (ptx::ld_acquire_sys(word) < epoch && ptx::globaltimer() - start < timeout_ns) {
  }
}

}  // namespace

GpuBarrier::GpuBarrier(Group& group)
    : group_(group), window_(group.make_window("barrier of a benchmark", 8 * group.size())) {
  cuda::load_kernels(group.device().index, {reinterpret_cast<const void*>(&barrier_kernel)});
  group.barrier("barrier of a benchmark");
}

void GpuBarrier::launch(const Stream& stream) {
  const cuda::DeviceGuard guard(group_.device().index);
  barrier_kernel<<<1, 64, 0, cuda::as_stream(stream.native_handle())>>>(
      window_->device_peers(), group_.rank(), group_.size(), ++epoch_,
      static_cast<uint64_t>(std::chrono::nanoseconds(group_.timeout()).count()));
  cuda::check_launch("barrier of a benchmark");
}

}  // namespace moebius::bench
