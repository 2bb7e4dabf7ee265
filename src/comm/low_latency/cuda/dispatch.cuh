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

// __syncthreads has barrier 0.
inline constexpr int kReceiversBarrier = 1;
inline constexpr int kBlockBarrier = 2;
// A __syncthreads that senders and receivers come to from different places of the code.
__device__ __forceinline__ void block_barrier() {
  ptx::barrier_sync<kLowLatencyThreads>(kBlockBarrier);
}

struct Block : CallBlock {
  uint64_t bases_done;  // mbarrier of the receivers
  bool can_send;        // the mailboxes of this bank are free

  // One thread calls it.
  __device__ void begin(const Args& args, uint32_t number) {
    CallBlock::begin(args.dispatch.call, number);
    ptx::mbarrier_init(&bases_done, 32 * kReceiveWarps);
    ptx::fence_mbarrier_init();
  }
};

// The shared memory of a block, as `map` says.
struct Pointers {
  std::byte* base;
  const DispatchSharedMap& map;

  // The ranks that a token goes to.
  template <int kWords>
  __device__ RankMaskOf<kWords>& ranks_of(int token) const {
    return reinterpret_cast<RankMaskOf<kWords>*>(base)[token];
  }
  __device__ uint32_t* placement() const { return at<uint32_t>(map.placement); }
  __device__ int32_t* ids() const { return at<int32_t>(map.ids); }
  __device__ int32_t* counts() const { return at<int32_t>(map.counts); }
  __device__ int32_t* bases() const { return at<int32_t>(map.bases); }
  __device__ int32_t* num_messages() const { return at<int32_t>(map.num_messages); }

 private:
  template <typename T>
  __device__ T* at(int32_t offset) const {
    return reinterpret_cast<T*>(base + offset);
  }
};

}  // namespace moebius::comm::low_latency_dispatch
