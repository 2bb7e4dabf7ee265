// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of LowLatency share.
#pragma once

#include "comm/device/signals.cuh"
#include "comm/low_latency/cuda/kernels.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"

namespace moebius::comm {

inline constexpr int kWarps = kLowLatencyThreads / 32;
inline constexpr int kSendWarps = kLowLatencySendWarps;
inline constexpr int kReceiveWarps = kWarps - kSendWarps;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

__device__ __forceinline__ int lane_id() {
  return static_cast<int>(threadIdx.x % 32);
}
__device__ __forceinline__ int warp_id() {
  return static_cast<int>(threadIdx.x / 32);
}
// Consecutive units of work go to different blocks.
__device__ __forceinline__ int spread_warp(int warp) {
  return static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) * warp;
}
// The order in which a block's warps take what has arrived: receivers first.
__device__ __forceinline__ int receive_unit(int warp) {
  return spread_warp(warp >= kSendWarps ? warp - kSendWarps : warp + kReceiveWarps);
}
__device__ __forceinline__ int num_receive_units() {
  return static_cast<int>(gridDim.x) * kWarps;
}

// The largest power of two of which the addresses of all rows of x and out are multiples.
inline int64_t row_alignment(const CudaLowLatencyLayout& layout, const void* x, const void* out) {
  const int64_t bits = (int64_t{layout.hidden} * layout.element_bytes) |
                       static_cast<int64_t>(reinterpret_cast<uintptr_t>(x)) |
                       static_cast<int64_t>(reinterpret_cast<uintptr_t>(out));
  return bits & -bits;
}

__device__ __forceinline__ uint64_t* word_at(std::byte* window, int64_t offset) {
  return reinterpret_cast<uint64_t*>(window + offset);
}

// The word of kUnit bytes, 16, 4 or 2, by which a warp moves rows.
template <int kUnit>
struct UnitWord;
template <>
struct UnitWord<16> {
  using Type = int4;
};
template <>
struct UnitWord<4> {
  using Type = uint32_t;
};
template <>
struct UnitWord<2> {
  using Type = uint16_t;
};
__device__ __forceinline__ void store_word(int4* to, int4 value) {
  ptx::st_no_allocate(to, value);
}
__device__ __forceinline__ void store_word(uint32_t* to, uint32_t value) {
  *to = value;
}
__device__ __forceinline__ void store_word(uint16_t* to, uint16_t value) {
  *to = value;
}
__device__ __forceinline__ void store_word(uint8_t* to, uint8_t value) {
  *to = value;
}
__device__ __forceinline__ int4 load_word(const int4* from) {
  return ptx::ld_no_allocate(from);
}
__device__ __forceinline__ uint32_t load_word(const uint32_t* from) {
  return *from;
}
__device__ __forceinline__ uint16_t load_word(const uint16_t* from) {
  return *from;
}
__device__ __forceinline__ uint8_t load_word(const uint8_t* from) {
  return *from;
}

// How often a warp looks for rows, for some 50 us, before it calls a function that waits.
inline constexpr int kInlinePolls = 64;

// What the lanes of a warp have come to: kHere only if all have, kFailed if any has.
__device__ __forceinline__ Awaited agree(Awaited own) {
  const bool all_here = __all_sync(kAllLanes, own == Awaited::kHere) != 0;
  __syncwarp();  // what each lane has acquired is visible to all
  if (all_here) {
    return Awaited::kHere;
  }
  return __any_sync(kAllLanes, own == Awaited::kFailed) != 0 ? Awaited::kFailed
                                                             : Awaited::kExcluded;
}

// These are rare, or slow anyway, and not inlined: kernels of low latency have 64 registers per
// thread, none of which they may take, and their code must be short, since it is fetched anew.
__device__ __noinline__ inline bool is_call_aborted(const SignalContext& signals) {
  return is_aborted(signals);
}
__device__ __noinline__ inline void tell_fault(const SignalContext& signals,
                                               FaultReason reason,
                                               SignalOp op,
                                               int guilty,
                                               uint32_t epoch,
                                               uint64_t seen) {
  raise_fault(signals,
              {reason, op, static_cast<uint8_t>(signals.rank), static_cast<uint8_t>(guilty), epoch},
              seen);
}
__device__ __noinline__ inline Awaited look_around_once(const SignalContext& signals,
                                                        SignalOp op,
                                                        uint32_t epoch,
                                                        int peer,
                                                        uint64_t seen,
                                                        uint64_t start,
                                                        uint32_t polls) {
  return look_around<true>(signals, op, epoch, peer, seen, start, polls);
}
__device__ __noinline__ inline Seen keep_awaiting(
    const SignalContext& signals, SignalOp op, uint32_t epoch, int peer, const uint64_t* signal) {
  return keep_looking(signal, epoch, [&](uint64_t seen, uint64_t start, uint32_t polls) {
    return look_around_once(signals, op, epoch, peer, seen, start, polls);
  });
}

// await_signal() where the rank may be excluded while it is awaited.
__device__ __forceinline__ Awaited await_peer(const SignalContext& signals,
                                              SignalOp op,
                                              uint32_t epoch,
                                              int peer,
                                              const uint64_t* signal,
                                              uint64_t* seen) {
  *seen = ptx::ld_acquire_sys(signal);  // pairs with publish: what the writer stored before it
  if (has_just_reached(signal_epoch(*seen), epoch)) {
    return Awaited::kHere;
  }
  const Seen last = keep_awaiting(signals, op, epoch, peer, signal);
  *seen = last.signal;
  return last.got;
}

// One warp: the nanoseconds from `begin_ns` until the lane's word has come, for each lane that
// awaits one.  Why it polls all of them together: lanes that wait one by one end at the same time.
// What has failed or is late is left to await_signal.
__device__ __noinline__ inline uint64_t time_until_here(const SignalContext& signals,
                                                        uint32_t epoch,
                                                        bool awaits,
                                                        const uint64_t* word,
                                                        uint64_t begin_ns) {
  uint64_t elapsed = 0;
  uint64_t now = ptx::globaltimer();
  const uint64_t start = now;
  do {
    if (awaits && has_reached(signal_epoch(ptx::ld_acquire_sys(word)), epoch)) {
      elapsed = now - begin_ns;
      awaits = false;
    }
    now = ptx::globaltimer();
    if (signals.excludes_missing && lane_id() == 0) {
      tell_of_wait(signals, start, now);
    }
  } while (__any_sync(kAllLanes, awaits && now - start < signals.timeout_ns) != 0 &&
           !is_call_aborted(signals));
  return elapsed;
}

// One warp publishes which calls this rank has unpacked: the receive kernels before this one in
// stream order are over.  pairs with begin_send of the peers: their mailboxes here are free
__device__ __forceinline__ void tell_unpacked(const LowLatencyCall& call,
                                              const RankMask& dead,
                                              int bank,
                                              uint64_t signal) {
#pragma unroll 1
  for (int r = lane_id(); r < call.layout.num_ranks; r += 32) {
    if (!dead.has(r)) {
      ptx::st_release_sys(word_at(call.window(r), call.layout.unpacked_at(bank, call.rank())),
                          signal);
    }
  }
}

// What the threads of a block share, of a dispatch or of a combine.
struct CallBlock {
  std::byte* own_bank;  // of this rank's window, where the bank of the epoch begins
  uint32_t epoch;
  RankMask dead;  // the excluded ranks
  bool has_dead;
  bool has_failed;
  uint64_t begin_ns;  // when the block began

  // One thread calls it.
  __device__ void begin(const LowLatencyCall& call, uint32_t number) {
    epoch = number;
    own_bank = call.window(call.rank()) + bank_of(number) * call.layout.bank_bytes;
    dead = call.state->exclusions.dead;
    has_dead = !dead.is_empty();
    begin_ns = ptx::globaltimer();
  }
  // The last warp calls it.
  __device__ void note_abort(const LowLatencyCall& call) {
    const uint64_t* words = call.signals.abort_words(call.rank());
    uint64_t any = 0;
#pragma unroll 1
    for (int author = lane_id(); author < call.layout.num_ranks; author += 32) {
      any |= ptx::ld_relaxed_sys(words + author);
    }
    any = __any_sync(kAllLanes, any != 0);
    if (lane_id() == 0) {
      has_failed = any != 0 && is_call_aborted(call.signals);
    }
  }
};

// The whole block of a launch that may only have to settle finds out whether there is nothing to
// do.
__device__ __forceinline__ bool is_settled(const LowLatencyCall& call) {
  if ((call.phases & kSettlePhase) == 0) {
    return false;
  }
  __shared__ bool is_unsettled;
  if (threadIdx.x == 0) {
    volatile uint32_t* flag = &call.state->exclusions.is_unsettled;
    is_unsettled = *flag != 0;
    __threadfence();
    // A block that arrives here has read the flag; the last block clears it.
    if (atomicInc(&call.state->settling, gridDim.x - 1) == gridDim.x - 1) {
      *flag = 0;
    }
  }
  __syncthreads();
  return !is_unsettled;
}

// The kernel takes Args{parts...}.  Why without <<<>>>: that copies them once more.
template <typename Args, typename... Parts>
void launch_call(void (*kernel)(Args),
                 const LowLatencyGrid& grid,
                 const char* what,
                 const Parts&... parts) {
  const cuda::DeviceGuard guard(grid.device);
  Args args{parts...};
  void* pointer = &args;
  (void)cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                         dim3(static_cast<unsigned>(grid.num_blocks)), dim3(kLowLatencyThreads),
                         &pointer, static_cast<size_t>(grid.shared_bytes),
                         cuda::as_stream(grid.stream));
  cuda::check_launch(what);
}

}  // namespace moebius::comm
