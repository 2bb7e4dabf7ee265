// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Up to slots::kChunk slots take one launch, and more take two.  Few slots have kernels with less
// code, since memory has to bring that.
#include <algorithm>
#include <memory>
#include <string>

#include "core/allocate.h"
#include "core/ceil_div.h"
#include "core/cuda/check.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/ptx.cuh"
#include "core/cuda/slot_order.cuh"
#include "moebius/error.h"

namespace moebius {

namespace {

using slots::kThreads;

constexpr int64_t kMaxLocalExperts = 1024;  // x 8 warps x 4 bytes of shared memory

__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ SlotSort a) {
  extern __shared__ int32_t counts[];
  for (int b = static_cast<int>(threadIdx.x); b < a.num_buckets; b += kThreads) {
    counts[b] = 0;
  }
  __syncthreads();
  int buckets[slots::kPerLane];
  slots::find_buckets(a, static_cast<int>(blockIdx.x), buckets);
#pragma unroll
  for (int i = 0; i < slots::kPerLane; ++i) {
    if (buckets[i] >= 0) {
      atomicAdd(&counts[buckets[i]], 1);
    }
  }
  __syncthreads();
  for (int b = static_cast<int>(threadIdx.x); b < a.num_buckets; b += kThreads) {
    a.chunk_counts[int64_t{blockIdx.x} * a.num_buckets + b] = counts[b];
  }
}

__global__ void __launch_bounds__(kThreads) place_kernel(const __grid_constant__ SlotSort a) {
  extern __shared__ int32_t next[];
  ptx::await_kernel_before();
  ptx::let_next_begin();
  slots::place_slots(a, static_cast<int>(blockIdx.x), next);
}

// These two make whole orders, of up to kMostCompared slots and of as many as there are threads.
constexpr int64_t kMostCompared = 64;
constexpr int kBlockThreads = 1024;

__global__ void __launch_bounds__(kThreads) few_kernel(const __grid_constant__ SlotSort a) {
  __shared__ __align__(16) int32_t keys[slots::kFew];
  ptx::await_kernel_before();
  ptx::let_next_begin();
  slots::place_few_slots(a, keys);
}

__global__ void __launch_bounds__(kBlockThreads) block_kernel(const __grid_constant__ SlotSort a) {
  extern __shared__ int32_t counts[];
  ptx::await_kernel_before();
  ptx::let_next_begin();
  slots::place_block(a, counts);
}

// Launches the kernel of the two that takes these slots, or returns false.  Why not a cluster, as
// the router does for a rank that is alone: eight ranks on one GPU hung.  A cluster waits until all
// its CTAs have room, and kernels that wait for other ranks hold that room.
bool launch_for_few(const SlotSort& a, cudaStream_t stream) {
  constexpr int64_t kMostBytes = 48 * 1024;
  const bool is_whole = a.num_cleared <= kThreads && a.max_rows == 0 && a.slot_of_row == nullptr &&
                        a.row_of_slot != nullptr && a.token_of_row != nullptr &&
                        a.expert_offsets != nullptr;
  const int64_t warps = ceil_div(std::max<int64_t>(a.num_slots, kThreads), int64_t{slots::kWarp});
  const int64_t bytes =
      int64_t{sizeof(int32_t)} * slots::block_words(static_cast<int>(warps), a.num_buckets);
  const int64_t threads = warps * slots::kWarp;
  if (!is_whole || threads > kBlockThreads || bytes > kMostBytes) {
    return false;
  }
  if (a.num_slots <= kMostCompared) {
    cuda::launch_early("few_kernel", few_kernel, 1, kThreads, 0, stream, a);
  } else {
    cuda::launch_early("block_kernel", block_kernel, 1, static_cast<unsigned>(threads),
                       static_cast<size_t>(bytes), stream, a);
  }
  return true;
}

int32_t* data_or_null(const Tensor& tensor) {
  return tensor ? tensor.data<int32_t>() : nullptr;
}

}  // namespace

CudaOrderArgs CudaOrderArgs::of(const Tensor& ids, const SlotOrder& order) {
  return {.ids = ids,
          .expert_map = order.expert_map,
          .num_local_experts = order.expert_counts.dim(0),
          .expert_offsets = order.expert_offsets,
          .token_of_row = order.token_of_row,
          .row_of_slot = order.row_of_slot,
          .expert_counts = order.expert_counts,
          .cleared = order.counters};
}

int64_t SlotSort::shared_bytes() const {
  return (slots::kWarps + 2) * int64_t{sizeof(int32_t)} * num_buckets;
}

SlotSort slot_sort(const CudaOrderArgs& args) {
  if (args.num_local_experts > kMaxLocalExperts) {
    throw Unsupported(std::to_string(args.num_local_experts) +
                      " local experts, the order of rows on a GPU takes up to " +
                      std::to_string(kMaxLocalExperts));
  }
  SlotSort a{};
  a.ids = Ids::of(args.ids);
  a.num_slots = args.ids.numel();
  a.topk = static_cast<int>(args.ids.dim(1));
  a.map = data_or_null(args.expert_map);
  a.num_ids = args.expert_map ? args.expert_map.dim(0) : 0;
  a.first_expert = args.first_expert;
  a.num_buckets = static_cast<int>(args.num_local_experts) + 1;
  a.num_chunks =
      static_cast<int>(std::max<int64_t>(1, (a.num_slots + slots::kChunk - 1) / slots::kChunk));
  // Few slots are dealt out to all warps.
  const int64_t each = (a.num_slots + slots::kWarps - 1) / slots::kWarps;
  a.warp_slots = static_cast<int>(std::min<int64_t>(
      (each + slots::kWarp - 1) / slots::kWarp * slots::kWarp, slots::kWarpSlots));
  a.max_rows = args.max_rows;
  a.expert_offsets = data_or_null(args.expert_offsets);
  a.expert_counts = data_or_null(args.expert_counts);
  a.slot_of_row = data_or_null(args.slot_of_row);
  a.token_of_row = data_or_null(args.token_of_row);
  a.row_of_slot = data_or_null(args.row_of_slot);
  a.cleared = data_or_null(args.cleared);
  a.num_cleared = args.cleared ? static_cast<int>(args.cleared.numel()) : 0;
  return a;
}

void cuda_order_slots(const CudaOrderArgs& args, const Stream& on) {
  SlotSort a = slot_sort(args);
  const cuda::DeviceGuard guard(on);
  const cudaStream_t stream = cuda::as_stream(on);
  const auto bucket_bytes = sizeof(int32_t) * static_cast<size_t>(a.num_buckets);
  const auto chunks = static_cast<unsigned>(a.num_chunks);
  if (launch_for_few(a, stream)) {
    return;
  }
  std::shared_ptr<void> counts;
  if (a.num_chunks > 1) {
    counts = allocate_on(static_cast<int64_t>(bucket_bytes) * a.num_chunks, on);
    a.chunk_counts = static_cast<int32_t*>(counts.get());
    count_kernel<<<chunks, kThreads, bucket_bytes, stream>>>(a);
    cuda::check_launch("count_kernel");
  }
  cuda::launch_early("place_kernel", place_kernel, chunks, kThreads,
                     static_cast<size_t>(a.shared_bytes()), stream, a);
}

}  // namespace moebius
