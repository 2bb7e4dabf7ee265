// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Signals on the device: publish, await with a deadline, abort.  signals.h says what the words
// mean.
//
// To publish rows, every thread that stored some first completes its bulk stores
// (ptx::bulk_wait<0>, not _read).  A block barrier follows, or a ticket (grid.cuh) for the rows of
// several blocks.  Then one thread calls publish(), whose release covers all of these stores.
// Warps that do not meet at a barrier count themselves instead, with fences around the count
// (tell_wave).  To consume rows, one thread awaits the signal, and a block barrier follows for the
// others.  No bulk copy reads what was awaited: that would also need a fence.proxy.async in the
// thread that issues the copy.
#pragma once

#include "comm/device/signals.h"
#include "core/cuda/ptx.cuh"

namespace moebius::comm {

__device__ __forceinline__ void publish(uint64_t* signal, uint32_t epoch, uint32_t value) {
  ptx::st_release_sys(signal, make_signal(epoch, value));  // pairs with await_signal
}

__device__ inline bool is_dead(const SignalContext& context, int rank) {
  return context.dead != nullptr && context.dead->has(rank);
}

// Returns whether this or another rank has raised a fault.  This rank's host is told of a fault
// that another rank has raised.
__device__ inline bool is_aborted(const SignalContext& context) {
  const uint64_t* words = context.abort_words(context.rank);
  if (ptx::ld_relaxed_sys(words + context.rank) != 0) {
    return true;
  }
  uint64_t found = 0;
  for (int author = 0; author < context.num_ranks; ++author) {
    const uint64_t word = ptx::ld_relaxed_sys(words + author);
    if (word != 0 && author != context.rank && !is_dead(context, author)) {
      found = word;
    }
  }
  if (found != 0) {
    ptx::st_relaxed_sys(&context.record->fault, found);
  }
  return found != 0;
}

// Tells this rank's host of the fault.  Only the first fault of a rank counts; false when there was
// one before.
__device__ inline bool raise_own_fault(const SignalContext& context,
                                       const Fault& fault,
                                       uint64_t seen) {
  const uint64_t word = pack_fault(fault);
  if (is_aborted(context) ||
      ptx::atom_cas_relaxed_sys(context.abort_words(context.rank) + context.rank, 0, word) != 0) {
    return false;
  }
  ptx::st_relaxed_sys(&context.record->seen, seen);
  ptx::st_release_sys(&context.record->fault, word);
  return true;
}

// Tells this rank's host and every live rank of the fault.
__device__ inline void raise_fault(const SignalContext& context,
                                   const Fault& fault,
                                   uint64_t seen) {
  if (!raise_own_fault(context, fault, seen)) {
    return;
  }
  for (int r = 0; r < context.num_ranks; ++r) {
    if (r != context.rank && !is_dead(context, r)) {
      ptx::st_relaxed_sys(context.abort_words(r) + context.rank, pack_fault(fault));
    }
  }
}

// The slow part of a wait; true if the wait must end.
__device__ inline bool must_give_up(const SignalContext& context,
                                    const Fault& fault,
                                    uint64_t seen,
                                    uint64_t start,
                                    uint32_t polls) {
  if (is_aborted(context)) {
    return true;
  }
  if (ptx::globaltimer() - start > context.timeout_ns) {
    raise_fault(context, fault, seen);
    return true;
  }
  // Reading host memory takes long, so it is done rarely.
  if (polls % 1024 == 0 && ptx::ld_relaxed_sys(&context.record->stop) != 0) {
    Fault stopped = fault;
    stopped.reason = FaultReason::kStopped;
    stopped.guilty = static_cast<uint8_t>(context.rank);
    raise_fault(context, stopped, 0);
    return true;
  }
  return false;
}

// One thread waits until the signal has reached `epoch`, and stores its value to *seen.  False when
// this or another rank has failed: the kernel must then end without touching its peers' memory.
//
// Why the writer is at most two calls ahead: it ends call e only when every live rank has told it
// of call e (high throughput: the notices of a dispatch, `ready` of a combine), so its call e + 2
// begins after this rank's call e has ended.  The send half of a low-latency dispatch awaits
// nothing of its own call, but it awaits `unpacked` of the call before last, which this rank tells
// in the same call.
__device__ inline bool await_signal(const SignalContext& context,
                                    SignalOp op,
                                    uint32_t epoch,
                                    int peer,
                                    const uint64_t* signal,
                                    uint64_t* seen) {
  *seen = ptx::ld_acquire_sys(signal);  // pairs with publish: what the writer stored before it
  if (has_just_reached(signal_epoch(*seen), epoch)) {
    return true;
  }
  Fault fault;
  fault.reason = FaultReason::kExpired;
  fault.op = op;
  fault.author = static_cast<uint8_t>(context.rank);
  fault.guilty = static_cast<uint8_t>(peer);
  fault.epoch = epoch;
  const uint64_t start = ptx::globaltimer();
  for (uint32_t polls = 1;; ++polls) {
    *seen = ptx::ld_acquire_sys(signal);
    if (has_just_reached(signal_epoch(*seen), epoch)) {
      return true;
    }
    if (polls % 64 == 0 && must_give_up(context, fault, *seen, start, polls)) {
      return false;
    }
  }
}

}  // namespace moebius::comm
