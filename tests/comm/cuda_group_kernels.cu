// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/ptx.cuh"
#include "tests/comm/cuda_group_kernels.h"

namespace moebius {

namespace {

constexpr int kThreads = 256;

__device__ uint64_t* flag_at(std::byte* window, int source) {
  return reinterpret_cast<uint64_t*>(window) + source;
}

__device__ uint32_t* words_at(std::byte* window, const StoreToPeers& args, int source) {
  return reinterpret_cast<uint32_t*>(flag_at(window, args.num_ranks)) + source * args.num_words;
}

// One CTA stores words and then a flag to every peer, the next rank first.  Then it waits for all
// flags and reads the words.
__global__ void store_to_peers_kernel(const StoreToPeers args) {
  __shared__ int missing;
  if (threadIdx.x == 0) {
    missing = -1;
  }
  for (int step = 1; step <= args.num_ranks; ++step) {
    const int owner = (args.rank + step) % args.num_ranks;
    uint32_t* to = words_at(args.peers[owner], args, args.rank);
    for (int64_t i = threadIdx.x; i < args.num_words; i += kThreads) {
      to[i] = word_of(args.round, args.rank, owner, i);
    }
  }
  __syncthreads();
  const int source = static_cast<int>(threadIdx.x);
  if (source < args.num_ranks) {
    // pairs with the loop below, at the peer: the words of all threads, through the barrier.
    ptx::st_release_sys(flag_at(args.peers[source], args.rank), static_cast<uint64_t>(args.round));
    const uint64_t* flag = flag_at(args.peers[args.rank], source);
    const uint64_t deadline = ptx::globaltimer() + static_cast<uint64_t>(args.patience_ns);
    while (ptx::ld_acquire_sys(flag) < static_cast<uint64_t>(args.round)) {
      if (ptx::globaltimer() > deadline) {
        missing = source;
        break;
      }
    }
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < args.num_ranks * args.num_words; i += kThreads) {
    args.received[i] = words_at(args.peers[args.rank], args, 0)[i];
  }
  if (threadIdx.x == 0) {
    *args.missing = missing;
  }
}

}  // namespace

void launch_store_to_peers(const Stream& stream, const StoreToPeers& args) {
  const cuda::DeviceGuard guard(stream.device().index);
  store_to_peers_kernel<<<1, kThreads, 0, cuda::as_stream(stream.native_handle())>>>(args);
  cuda::check_launch("store_to_peers_kernel");
}

void load_store_to_peers(int device) {
  cuda::load_kernels(device, {reinterpret_cast<const void*>(&store_to_peers_kernel)});
}

}  // namespace moebius
