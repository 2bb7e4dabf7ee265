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
//
// Every wait has a copy of what it does when it lasts or fails, so the loops there are not
// unrolled: they would be most of a kernel's code, and of the time that it takes to compile.
#pragma once

#include "comm/device/signals.h"
#include "core/cuda/ptx.cuh"

namespace moebius::comm {

__device__ __forceinline__ void publish(uint64_t* signal, uint32_t epoch, uint32_t value) {
  ptx::st_release_sys(signal, make_signal(epoch, value));  // pairs with await_signal
}

__device__ inline bool is_dead(const SignalContext& context, int rank) {
  return context.exclusions != nullptr && context.exclusions->dead.has(rank);
}

// Returns whether this rank's window has an abort word.  Why several at a time: a thread that waits
// for each word before it asks for the next takes some 300 ns for each.
__device__ inline bool has_abort_word(const SignalContext& context) {
  constexpr int kAtOnce = 8;
  const uint64_t* words = context.abort_words(context.rank);
  uint64_t any = 0;
#pragma unroll 1
  for (int first = 0; first < context.num_ranks; first += kAtOnce) {
    uint64_t loaded[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      loaded[i] = first + i < context.num_ranks ? ptx::ld_relaxed_sys(words + first + i) : 0;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      any |= loaded[i];
    }
  }
  return any != 0;
}

// Returns whether this or another rank has raised a fault.  This rank's host is told of a fault
// that another rank has raised.
__device__ inline bool is_aborted(const SignalContext& context) {
  if (!has_abort_word(context)) {
    return false;
  }
  const uint64_t* words = context.abort_words(context.rank);
  if (ptx::ld_relaxed_sys(words + context.rank) != 0) {
    return true;
  }
  uint64_t found = 0;
#pragma unroll 1
  for (int author = 0; author < context.num_ranks; ++author) {
    const uint64_t word = ptx::ld_relaxed_sys(words + author);
    if (word != 0 && !is_dead(context, author)) {
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
#pragma unroll 1
  for (int r = 0; r < context.num_ranks; ++r) {
    if (r != context.rank && !is_dead(context, r)) {
      ptx::st_relaxed_sys(context.abort_words(r) + context.rank, pack_fault(fault));
    }
  }
}

// What a wait for a rank has come to.
enum class Awaited : uint8_t {
  kHere,
  kExcluded,  // the rank is excluded: what was awaited will not come
  kFailed,    // this or another rank has failed: the kernel must end
};

// Excludes the rank that a wait has missed, and tells it and this rank's host.
__device__ inline void exclude(const SignalContext& context, Fault fault) {
  const int peer = fault.guilty;
  const unsigned long long bit = 1ull << peer % 64;
  auto* word = reinterpret_cast<unsigned long long*>(context.exclusions->dead.words + peer / 64);
  if ((atomicOr(word, bit) & bit) != 0) {
    return;
  }
  *reinterpret_cast<volatile uint32_t*>(&context.exclusions->is_unsettled) = 1;
  *reinterpret_cast<volatile uint8_t*>(&context.record->excluded[peer]) = 1;
  fault.reason = FaultReason::kExcluded;
  ptx::st_relaxed_sys(context.abort_words(peer) + context.rank, pack_fault(fault));
}

__device__ __forceinline__ uint64_t* beat_word(const SignalContext& context, int owner, int rank) {
  return reinterpret_cast<uint64_t*>(context.windows[owner] + context.beats_at) + rank;
}

// Every quarter of the timeout, one thread that waits since `start` tells all live ranks so, also
// its own, whose blocks wait for each other.
__device__ inline void tell_of_wait(const SignalContext& context, uint64_t start, uint64_t now) {
  const uint64_t quarter = context.timeout_ns / 4;
  unsigned long long* last = &context.exclusions->beat_ns;
  const unsigned long long told = *reinterpret_cast<volatile unsigned long long*>(last);
  if (now - start < quarter || now - told < quarter || atomicCAS(last, told, now) != told) {
    return;
  }
#pragma unroll 1
  for (int r = 0; r < context.num_ranks; ++r) {
    if (!is_dead(context, r)) {
      ptx::st_relaxed_sys(beat_word(context, r, context.rank), now);
    }
  }
}

// Returns whether a wait for the peer has passed its deadline, which begins anew when the peer
// tells that it waits, too.  It ends after four timeouts, since ranks may wait for each other.
__device__ inline bool is_overdue(const SignalContext& context,
                                  int peer,
                                  uint64_t start,
                                  uint64_t now) {
  // The peer has a clock of its own, so what counts is when a new word of its was seen.
  HeardBeat& heard = context.exclusions->heard[peer];
  volatile uint64_t* word = &heard.word;
  volatile uint64_t* when = &heard.when_ns;
  const uint64_t latest = ptx::ld_relaxed_sys(beat_word(context, context.rank, peer));
  if (latest != *word) {
    *when = now;
    *word = latest;
  }
  const uint64_t waited = now - start;
  return waited > context.timeout_ns &&
         (now - *when > context.timeout_ns || waited > 4 * context.timeout_ns);
}

// Returns whether a wait must end, though its deadline has not passed.
__device__ inline bool must_end(const SignalContext& context, const Fault& fault, uint32_t polls) {
  if (is_aborted(context)) {
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

__device__ inline Fault expired_fault(const SignalContext& context,
                                      SignalOp op,
                                      uint32_t epoch,
                                      int peer) {
  return {FaultReason::kExpired, op, static_cast<uint8_t>(context.rank), static_cast<uint8_t>(peer),
          epoch};
}

// The slow part of a wait; kHere: it goes on.  The caller's kernel may exclude ranks where
// kMayExclude.
template <bool kMayExclude>
__device__ inline Awaited look_around(const SignalContext& context,
                                      SignalOp op,
                                      uint32_t epoch,
                                      int peer,
                                      uint64_t seen,
                                      uint64_t start,
                                      uint32_t polls) {
  const Fault fault = expired_fault(context, op, epoch, peer);
  if (must_end(context, fault, polls)) {
    return Awaited::kFailed;
  }
  const uint64_t now = ptx::globaltimer();
  const bool may_exclude = kMayExclude && context.excludes_missing;
  if (may_exclude) {
    const uint64_t word = ptx::ld_relaxed_sys(context.exclusions->dead.words + peer / 64);
    if ((word >> peer % 64 & 1) != 0) {
      return Awaited::kExcluded;
    }
    tell_of_wait(context, start, now);
  }
  if (may_exclude ? !is_overdue(context, peer, start, now) : now - start <= context.timeout_ns) {
    return Awaited::kHere;
  }
  if (may_exclude && peer != context.rank) {  // otherwise blocks of this rank never came
    exclude(context, fault);
    return Awaited::kExcluded;
  }
  raise_fault(context, fault, seen);
  return Awaited::kFailed;
}

// How a wait has ended, and the signal that was seen last.
struct Seen {
  uint64_t signal;
  Awaited got;
};

// One thread looks again and again for a signal that was not there at first.  Every 64 times it
// calls look(seen, start, polls), as look_around is called, and goes on while that is kHere.
template <typename Look>
__device__ __forceinline__ Seen keep_looking(const uint64_t* signal,
                                             uint32_t epoch,
                                             const Look& look) {
  const uint64_t start = ptx::globaltimer();
  for (uint32_t polls = 1;; ++polls) {
    const uint64_t seen = ptx::ld_acquire_sys(signal);
    if (has_just_reached(signal_epoch(seen), epoch)) {
      return {seen, Awaited::kHere};
    }
    if (polls % 64 == 0) {
      const Awaited got = look(seen, start, polls);
      if (got != Awaited::kHere) {
        return {seen, got};
      }
    }
  }
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
  const Seen last =
      keep_looking(signal, epoch, [&](uint64_t now_seen, uint64_t start, uint32_t polls) {
        return look_around<false>(context, op, epoch, peer, now_seen, start, polls);
      });
  *seen = last.signal;
  return last.got == Awaited::kHere;
}

}  // namespace moebius::comm
