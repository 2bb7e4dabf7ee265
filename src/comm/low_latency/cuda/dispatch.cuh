// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the halves of a low-latency dispatch share.
#pragma once

#include "comm/device/grid.cuh"
#include "comm/low_latency/cuda/device.cuh"

namespace moebius::comm::low_latency_dispatch {

inline constexpr SignalOp kOp = SignalOp::kLowLatencyDispatch;

struct Args {
  LowLatencyDispatchCall dispatch;
  __device__ const SignalContext& signals() const { return dispatch.call.signals; }
};

struct Block : CallBlock {
  uint64_t bases_done;  // mbarrier of the receivers

  // One thread calls it.
  __device__ void begin(const Args& args, uint32_t number) {
    CallBlock::begin(args.dispatch.call, number);
    ptx::mbarrier_init(&bases_done, 32 * kReceiveWarps);
    ptx::fence_mbarrier_init();
  }
};

struct Pointers {
  std::byte* tokens_ranks;
  uint32_t* placement;
  int32_t* ids;
  int32_t* counts;
  int32_t* bases;
  int32_t* num_messages;

  // The ranks that a token goes to.
  template <int kWords>
  __device__ RankMaskOf<kWords>& ranks_of(int token) const {
    return reinterpret_cast<RankMaskOf<kWords>*>(tokens_ranks)[token];
  }
};

__device__ inline Pointers map_shared(std::byte* shared, const LowLatencyCall& call) {
  const DispatchSharedMap map =
      DispatchSharedMap::make(call.layout, call.num_experts, call.num_local);
  return {shared + map.tokens_ranks,
          reinterpret_cast<uint32_t*>(shared + map.placement),
          reinterpret_cast<int32_t*>(shared + map.ids),
          reinterpret_cast<int32_t*>(shared + map.counts),
          reinterpret_cast<int32_t*>(shared + map.bases),
          reinterpret_cast<int32_t*>(shared + map.num_messages)};
}

}  // namespace moebius::comm::low_latency_dispatch
