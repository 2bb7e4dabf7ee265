// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/low_latency/cuda/device.cuh"
#include "core/cuda/check.h"
#include "core/cuda/device.h"

namespace moebius::comm {

namespace {

// The grid is one block with a thread per rank.  Why it does not use await_signal: that ends when
// an abort word is set, and some are.  They stay set until every live rank has come here, after all
// of its earlier kernels; only then will none of these kernels store one.
__global__ void __launch_bounds__(kMaxCudaRanks)
    resume_kernel(const __grid_constant__ LowLatencyCall call, uint32_t number) {
  const auto peer = static_cast<int>(threadIdx.x);
  const uint32_t epoch = call.state->epoch;
  const bool is_live = peer < call.layout.num_ranks && !call.state->exclusions.dead.has(peer);
  uint64_t seen = make_signal(number, epoch);
  bool has_come = true;
  if (is_live) {
    // pairs with the load below in the peer: all kernels of this rank so far are over
    ptx::st_release_sys(word_at(call.window(peer), call.layout.resumed_at(call.rank())), seen);
    const uint64_t* word = word_at(call.window(call.rank()), call.layout.resumed_at(peer));
    // A peer may have just begun to wait for a missing rank, for a whole timeout.
    const uint64_t patience = 2 * call.signals.timeout_ns;
    const uint64_t start = ptx::globaltimer();
    do {
      seen = ptx::ld_acquire_sys(word);
      has_come = has_reached(signal_epoch(seen), number);
    } while (!has_come && ptx::globaltimer() - start < patience);
  }
  __shared__ uint32_t latest;
  if (threadIdx.x == 0) {
    latest = epoch;
  }
  __syncthreads();
  if (is_live && has_come) {
    // Epochs may have wrapped.
    for (uint32_t other = latest; !has_reached(other, signal_value(seen));) {
      other = atomicCAS(&latest, other, signal_value(seen));
    }
  }
  if (!has_come) {
    Fault fault;
    fault.reason = FaultReason::kExpired;
    fault.op = SignalOp::kLowLatencyResume;
    fault.author = static_cast<uint8_t>(call.rank());
    fault.guilty = static_cast<uint8_t>(peer);
    fault.epoch = number;
    ptx::st_relaxed_sys(&call.signals.record->seen, seen);
    ptx::st_release_sys(&call.signals.record->fault, pack_fault(fault));
  }
  if (__syncthreads_and(has_come) == 0) {
    return;
  }
  if (peer < call.layout.num_ranks) {
    uint64_t* word = word_at(call.window(call.rank()), call.layout.abort_at(peer));
    if (may_go_on(ptx::ld_relaxed_sys(word), call.state->exclusions.dead)) {
      ptx::st_relaxed_sys(word, 0);
    }
  }
  if (threadIdx.x == 0) {
    call.state->epoch = latest;
    // A kernel that failed may have left these between two blocks.
    call.state->arrived = 0;
    call.state->waited = 0;
    call.state->combining = 0;
    call.state->settling = 0;
    ptx::st_relaxed_sys(&call.signals.record->seen, 0);
    ptx::st_relaxed_sys(&call.signals.record->fault, 0);
  }
}

}  // namespace

void load_low_latency_resume(int device) {
  cuda::load_kernels(device, resume_kernel);
}

void launch_low_latency_resume(const LowLatencyCall& call,
                               uint32_t number,
                               int device,
                               void* stream) {
  const cuda::DeviceGuard guard(device);
  resume_kernel<<<1, kMaxCudaRanks, 0, cuda::as_stream(stream)>>>(call, number);
  cuda::check_launch("resume_kernel");
}

}  // namespace moebius::comm
