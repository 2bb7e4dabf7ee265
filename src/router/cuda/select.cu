// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Selection with a warp per token.  There are few bytes (4096 x 256 logits are 4.2 MB, 1 us).  The
// latency of the K steps matters, and many warps hide it.  With few tokens the grid may be one
// cluster, which then orders the slots that have been chosen.
#include <algorithm>

#include "core/cuda/launch.cuh"
#include "core/cuda/ptx.cuh"
#include "core/cuda/slot_order.cuh"
#include "router/cuda/select.cuh"
#include "router/cuda/select.h"

namespace moebius::router {

namespace {

constexpr int kSharedBytes = 48 * 1024;
constexpr int kMostWarps = 4;
// Warps of a CTA with an order, where one CTA compares all slots, and where CTAs share them.
constexpr int kComparingWarps = 8;
constexpr int kSharingWarps = 16;
constexpr int kComparingBlocks = 2;
constexpr int kMostBlocks = 8;

int warp_bytes(const SelectArgs& args) {
  return static_cast<int>(sizeof(float)) *
         select_words(args.num_experts, args.num_groups, args.topk);
}

// Whether the first CTA compares all slots.  That takes the least code, which has to come from
// memory, and with more slots too many comparisons.
__host__ __device__ bool compares_slots(const SelectArgs& a) {
  return a.num_tokens <= kComparingBlocks * kComparingWarps && a.order.num_slots <= slots::kFew;
}

int order_warps(const SelectArgs& args) {
  return compares_slots(args) ? kComparingWarps
                              : std::min(kSharingWarps, slots::kShareSlots / args.topk);
}

// The shared memory of a CTA of so many warps.
int64_t cta_bytes(const SelectArgs& args, int warps) {
  const int of_order = !args.orders()         ? 0
                       : compares_slots(args) ? slots::kFew
                                              : slots::share_words(args.order.num_buckets);
  return std::max<int64_t>(int64_t{warps} * warp_bytes(args), of_order * sizeof(int32_t));
}

template <int kPerLane, bool kMixes>
__global__ void __launch_bounds__(kSharingWarps* kWarp)
    select_kernel(const __grid_constant__ SelectArgs a) {
  extern __shared__ __align__(16) float memory[];
  ptx::await_kernel_before();
  ptx::let_next_begin();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto num_warps = static_cast<int>(blockDim.x) / kWarp;
  const int64_t first = int64_t{blockIdx.x} * num_warps;
  if (first + warp < a.num_tokens) {
    choose_row<kPerLane, kMixes>(a, lane, first + warp,
                                 memory + warp * select_words(a.num_experts, a.num_groups, a.topk));
  }
  if (!a.orders()) {
    return;
  }
  auto* words = reinterpret_cast<int32_t*>(memory);
  if (compares_slots(a)) {
    __syncwarp();
    // pairs with the arrivals of all CTAs: the ids that they have stored are visible.
    ptx::cluster_arrive();
    ptx::cluster_wait();
    if (blockIdx.x == 0) {
      slots::place_few_slots(a.order, words);
    }
  } else {
    __syncthreads();  // the ids of this CTA are stored
    const auto num = static_cast<int>(min(int64_t{num_warps}, a.num_tokens - first)) * a.topk;
    slots::place_share(a.order, first * a.topk, num, words);
  }
}

template <int kPerLane>
void launch(const SelectArgs& args, cudaStream_t stream) {
  const bool mixes = args.scoring == Scoring::kSparseMixer;
  const auto kernel = mixes ? select_kernel<kPerLane, true> : select_kernel<kPerLane, false>;
  const int warps = args.orders() ? order_warps(args)
                                  : std::clamp(kSharedBytes / warp_bytes(args), 1, kMostWarps);
  const auto blocks = static_cast<unsigned>((args.num_tokens + warps - 1) / warps);
  const auto threads = static_cast<unsigned>(warps * kWarp);
  cuda::launch_early("select_kernel", kernel, {blocks, args.orders() && blocks > 1}, threads,
                     static_cast<size_t>(cta_bytes(args, warps)), stream, args);
}

}  // namespace

bool can_order(const SelectArgs& args) {
  if (args.num_tokens == 0 || (!compares_slots(args) && args.topk > kWarp)) {
    return false;
  }
  const int warps = order_warps(args);
  return args.num_tokens <= int64_t{kMostBlocks} * warps && cta_bytes(args, warps) <= kSharedBytes;
}

void launch_select(const SelectArgs& args, cudaStream_t stream) {
  if (args.num_tokens == 0) {
    return;
  }
  static_assert(kMaxCudaExperts == 32 * kWarp);
  const int n = (args.num_experts + kWarp - 1) / kWarp;
  const auto run = n <= 1    ? launch<1>
                   : n <= 2  ? launch<2>
                   : n <= 4  ? launch<4>
                   : n <= 8  ? launch<8>
                   : n <= 16 ? launch<16>
                             : launch<32>;
  run(args, stream);
}

}  // namespace moebius::router
