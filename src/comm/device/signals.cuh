// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Signals on the device: publish, await with a deadline, abort.  signals.h says what the words
// mean.
//
// Publishing rows: every thread that stored some has made its bulk stores complete
// (ptx::bulk_wait<0>, not _read); then a block barrier, or a ticket (grid.cuh) for rows of several
// blocks; then one thread calls publish, whose release takes all of them along. Warps that do not
// meet count themselves instead, with fences around it (tell_wave). Consuming: await,
// then a block barrier for the other threads.  No bulk copy reads what was awaited: that would take
// a fence.proxy.async as well, in the thread that issues it.
#pragma once

#include "comm/device/signals.h"
#include "core/cuda/ptx.cuh"

namespace moebius::comm {

__device__ __forceinline__ void publish(uint64_t* signal, uint32_t epoch, uint32_t value) {
  ptx::st_release_sys(signal, make_signal(epoch, value));  // pairs with await_signal
}

__device__ inline uint64_t dead_ranks(const SignalContext& context) {
  return context.dead != nullptr ? *context.dead : 0;
}

// A fault that another rank has raised is handed to the own host, too.
__device__ inline bool is_aborted(const SignalContext& context) {
  const uint64_t* words = context.abort[context.rank];
  if (ptx::ld_relaxed_sys(words + context.rank) != 0) {
    return true;
  }
  const uint64_t dead = dead_ranks(context);
  uint64_t found = 0;
  for (int author = 0; author < context.num_ranks; ++author) {
    const uint64_t word = ptx::ld_relaxed_sys(words + author);
    if (word != 0 && author != context.rank && !is_from_dead(word, dead)) {
      found = word;
    }
  }
  if (found != 0) {
    ptx::st_relaxed_sys(&context.record->fault, found);
  }
  return found != 0;
}

// Tells the own host; the first fault of a rank is the one it keeps to.  False: there was one.
__device__ inline bool raise_own_fault(const SignalContext& context,
                                       const Fault& fault,
                                       uint64_t seen) {
  const uint64_t word = pack_fault(fault);
  if (is_aborted(context) ||
      ptx::atom_cas_relaxed_sys(context.abort[context.rank] + context.rank, 0, word) != 0) {
    return false;
  }
  ptx::st_relaxed_sys(&context.record->seen, seen);
  ptx::st_release_sys(&context.record->fault, word);
  return true;
}

// Tells every live rank, too.
__device__ inline void raise_fault(const SignalContext& context,
                                   const Fault& fault,
                                   uint64_t seen) {
  if (!raise_own_fault(context, fault, seen)) {
    return;
  }
  const uint64_t dead = dead_ranks(context);
  for (int r = 0; r < context.num_ranks; ++r) {
    if (r != context.rank && (dead >> r & 1) == 0) {
      ptx::st_relaxed_sys(context.abort[r] + context.rank, pack_fault(fault));
    }
  }
}

// The slow part of a wait: true if it must end.
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
  // Host memory is far away; its news can wait.
  if (polls % 1024 == 0 && ptx::ld_relaxed_sys(&context.record->stop) != 0) {
    Fault stopped = fault;
    stopped.reason = FaultReason::kStopped;
    stopped.guilty = static_cast<uint8_t>(context.rank);
    raise_fault(context, stopped, 0);
    return true;
  }
  return false;
}

// One thread waits until the signal has reached `epoch`; *seen is what it then is.  False: this or
// another rank has failed, and the kernel must end without touching its peers' memory again.
//
// Why the writer is at most two calls further: it ends call e only when it has heard of call e
// from every live rank (high throughput: notices of a dispatch, `ready` of a combine), so its call
// e + 2 begins after this rank's call e has ended.  The send half of a low-latency dispatch hears
// nothing of its own call, but `unpacked` of the one before last, which this rank tells in the same
// call.
__device__ inline bool await_signal(const SignalContext& context,
                                    SignalOp op,
                                    uint32_t epoch,
                                    int peer,
                                    const uint64_t* signal,
                                    uint64_t* seen) {
  *seen = ptx::ld_acquire_sys(signal);  // pairs with publish: what was stored before it
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
