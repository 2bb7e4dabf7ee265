// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Selection with a warp per token.  There are few bytes (4096 x 256 logits are 4.2 MB, 1 us).  The
// latency of the K steps matters, and many warps hide it.  With few tokens the grid may be one
// cluster, whose first CTA then orders the slots that have been chosen.
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
// Warps and CTAs with an order.  The slots of four CTAs are ordered sooner by a kernel of its own.
constexpr int kOrderWarps = 8;
constexpr int kMostBlocks = 2;

int warp_bytes(const SelectArgs& args) {
  return static_cast<int>(sizeof(float)) *
         select_words(args.num_experts, args.num_groups, args.topk);
}

template <int kPerLane, bool kMixes>
__global__ void __launch_bounds__(kOrderWarps* kWarp)
    select_kernel(const __grid_constant__ SelectArgs a) {
  extern __shared__ float memory[];
  ptx::await_kernel_before();
  ptx::let_next_begin();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t token = int64_t{blockIdx.x} * (blockDim.x / kWarp) + warp;
  if (token < a.num_tokens) {
    choose_row<kPerLane, kMixes>(a, lane, token,
                                 memory + warp * select_words(a.num_experts, a.num_groups, a.topk));
  }
  if (!a.orders()) {
    return;
  }
  if (gridDim.x == 1) {
    __syncthreads();
  } else {
    __syncwarp();
    // pairs with the arrivals of all CTAs: the ids that they have stored are visible.
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
  if (blockIdx.x == 0) {
    slots::place_few_slots(a.order, reinterpret_cast<int32_t*>(memory));
  }
}

template <int kPerLane>
void launch(const SelectArgs& args, cudaStream_t stream) {
  const bool mixes = args.scoring == Scoring::kSparseMixer;
  const auto kernel = mixes ? select_kernel<kPerLane, true> : select_kernel<kPerLane, false>;
  const int warps =
      args.orders() ? kOrderWarps : std::clamp(kSharedBytes / warp_bytes(args), 1, kMostWarps);
  const auto blocks = static_cast<unsigned>((args.num_tokens + warps - 1) / warps);
  const auto threads = static_cast<unsigned>(warps * kWarp);
  const int64_t bytes = std::max<int64_t>(int64_t{warps} * warp_bytes(args),
                                          args.orders() ? slots::kFew * sizeof(int32_t) : 0);
  cuda::launch_early("select_kernel", kernel, {blocks, args.orders() && blocks > 1}, threads,
                     static_cast<size_t>(bytes), stream, args);
}

}  // namespace

bool can_order(const SelectArgs& args) {
  return args.num_tokens > 0 && args.num_tokens <= kMostBlocks * kOrderWarps &&
         args.order.num_slots <= slots::kFew && kOrderWarps * warp_bytes(args) <= kSharedBytes;
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
