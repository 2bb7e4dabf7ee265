// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/cuda/check.h"
#include "core/ids.h"
#include "moebius/tensor.h"
#include "router/cuda/count.h"

namespace moebius::router {

namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 16;              // ids
constexpr int64_t kMaxSharedCounts = 8192;  // 32 KiB of shared memory; more use global memory

struct Args {
  Ids ids;
  int64_t num_ids;
  const int32_t* map;
  int64_t bound;  // of an id
  int num_local_experts;
  int32_t* counts;
};

// A CTA counts in shared memory and then adds its counts to the result.  A single CTA stores them
// instead, so that the result need not be cleared first.
__global__ void __launch_bounds__(kThreads)
    count_kernel(const __grid_constant__ Args a, bool is_shared) {
  extern __shared__ int32_t own[];
  int32_t* counts = is_shared ? own : a.counts;
  if (is_shared) {
    for (int e = static_cast<int>(threadIdx.x); e < a.num_local_experts; e += kThreads) {
      own[e] = 0;
    }
    __syncthreads();
  }
  // Why all ids are loaded first: the thread then waits for memory once and not kPerThread times.
  const int64_t begin = int64_t{blockIdx.x} * (kThreads * kPerThread) + threadIdx.x;
  int32_t ids[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t at = begin + i * kThreads;
    ids[i] = at < a.num_ids ? a.ids[at] : -1;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (ids[i] < 0 || ids[i] >= a.bound) {
      continue;
    }
    const int32_t local = a.map != nullptr ? a.map[ids[i]] : ids[i];
    if (local >= 0 && local < a.num_local_experts) {
      atomicAdd(&counts[local], 1);
    }
  }
  if (!is_shared) {
    return;
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < a.num_local_experts; e += kThreads) {
    if (gridDim.x == 1) {
      a.counts[e] = own[e];
    } else if (own[e] > 0) {
      atomicAdd(&a.counts[e], own[e]);
    }
  }
}

}  // namespace

void cuda_count_expert_tokens(const Tensor& ids,
                              const Tensor& expert_map,
                              const Tensor& out,
                              const Stream& on) {
  const cuda::DeviceGuard guard(on);
  const cudaStream_t stream = cuda::as_stream(on);
  const int64_t num_local_experts = out.dim(0);
  Args a{};
  a.ids = Ids::of(ids);
  a.num_ids = ids.numel();
  a.map = expert_map ? expert_map.data<int32_t>() : nullptr;
  a.bound = expert_map ? expert_map.dim(0) : num_local_experts;
  a.num_local_experts = static_cast<int>(num_local_experts);
  a.counts = out.data<int32_t>();
  const bool is_shared = num_local_experts <= kMaxSharedCounts;
  const int64_t blocks =
      std::max<int64_t>(1, (a.num_ids + kThreads * kPerThread - 1) / (kThreads * kPerThread));
  if (blocks > 1 || !is_shared) {
    cuda::check_cuda(cudaMemsetAsync(a.counts, 0, static_cast<size_t>(out.nbytes()), stream),
                     "cudaMemsetAsync of counts");
  }
  const size_t shared = is_shared ? sizeof(int32_t) * static_cast<size_t>(num_local_experts) : 0;
  count_kernel<<<static_cast<unsigned>(blocks), kThreads, shared, stream>>>(a, is_shared);
  cuda::check_launch("count_kernel");
}

}  // namespace moebius::router
