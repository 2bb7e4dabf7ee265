// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Signals between GPUs, and faults, which waits that fail become: the words that device and host
// share.
//
// A signal (core/cuda/signal_word.h) lies in a window.  Its epoch is the number of a call of the
// object that owns the window, from 1; the kernels themselves keep and advance it in device memory.
//
// A wait that expires becomes a Fault, packed into one word.  The kernel that finds it stores the
// word as its rank's abort word into every rank's window, its own first, and into its host's
// FaultRecord.  Kernels that see an abort word end at once, and tell their host in the same way.
// Abort words of excluded ranks are ignored.  Why there is a word per author: what an excluded rank
// stores must not take the place of what a live rank says.
//
// Where missing ranks are excluded, a wait that expires excludes the rank that it waits for
// instead, and tells that rank alone, by its abort word.  A wait that lasts tells the others so
// (`beats`), since they may come to miss this rank, which only waits itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/device/rank_mask.h"
#include "core/cuda/signal_word.h"
#include "core/forward.h"

namespace moebius::comm {

// Two numbers below 65536, as the value of one signal.
MOEBIUS_HOST_DEVICE constexpr uint32_t make_pair(uint32_t first, uint32_t second) {
  return first << 16 | second;
}
MOEBIUS_HOST_DEVICE constexpr uint32_t pair_first(uint32_t value) {
  return value >> 16;
}
MOEBIUS_HOST_DEVICE constexpr uint32_t pair_second(uint32_t value) {
  return value & 0xffffu;
}

// The part of an operation that a wait took place in.
enum class SignalOp : uint8_t {
  kNone,
  kDispatchCounts,
  kDispatch,
  kCachedDispatch,
  kCombine,
  kLowLatencyDispatch,
  kLowLatencyCombine,
  kLowLatencyResume,
  kMeeting,
};
const char* name(SignalOp op);  // "dispatch counts"

enum class FaultReason : uint8_t {
  kNone,
  // Where braces are given, FaultRecord::seen holds these numbers as {epoch | value}.
  kExpired,         // the peer gave no signal in time
  kStopped,         // the author's host gave up; it knows why
  kOverflow,        // {rows | capacity}: more rows go to the guilty rank than its call has room for
  kMismatch,        // {its bytes | own bytes}: the guilty rank moves rows of another size
  kBadId,           // {token | id}: there is no such expert
  kRoomMismatch,    // {its tokens | own tokens}: the call of the guilty rank has another room
  kNoRoom,          // {expert | times, room}: tokens of the guilty rank name the expert too often
  kExcluded,        // the author has missed the guilty rank, and goes on without it
  kCombinedTwice,   // the guilty rank combines a dispatch a second time
  kScalesMismatch,  // {its bytes | own bytes}: rows of the guilty rank have other scales
};

struct Fault {
  FaultReason reason = FaultReason::kNone;
  SignalOp op = SignalOp::kNone;
  uint8_t author = 0;  // the rank that found it
  uint8_t guilty = 0;  // the rank to blame
  uint32_t epoch = 0;  // of the author's call

  bool operator==(const Fault&) const = default;
};
// The word of a fault is never 0.
MOEBIUS_HOST_DEVICE constexpr uint64_t pack_fault(const Fault& fault) {
  return static_cast<uint64_t>(fault.epoch) << 32 | static_cast<uint64_t>(fault.author) << 24 |
         static_cast<uint64_t>(fault.guilty) << 16 | static_cast<uint64_t>(fault.op) << 8 |
         static_cast<uint64_t>(fault.reason);
}
MOEBIUS_HOST_DEVICE constexpr Fault unpack_fault(uint64_t word) {
  Fault fault;
  fault.epoch = static_cast<uint32_t>(word >> 32);
  fault.author = static_cast<uint8_t>(word >> 24);
  fault.guilty = static_cast<uint8_t>(word >> 16);
  fault.op = static_cast<SignalOp>(word >> 8 & 0xff);
  fault.reason = static_cast<FaultReason>(word & 0xff);
  return fault;
}

// Returns whether an excluded rank has found the fault.  Such a rank may still run, and miss the
// ranks that no longer talk to it.  `dead`: the excluded ranks.
MOEBIUS_HOST_DEVICE constexpr bool is_from_dead(uint64_t fault, const RankMask& dead) {
  return fault != 0 && dead.has(unpack_fault(fault).author);
}
// Returns whether the live ranks may go on: there is no fault, or it was found by an excluded rank
// or blames one.
MOEBIUS_HOST_DEVICE constexpr bool may_go_on(uint64_t fault, const RankMask& dead) {
  return fault == 0 || is_from_dead(fault, dead) || dead.has(unpack_fault(fault).guilty);
}

// It lies in pinned host memory that is mapped into the device.  Each object has one per rank, zero
// at first.
struct FaultRecord {
  uint64_t fault;  // packed; the device stores it after `seen`
  uint64_t seen;   // on the author alone: the signal that was there, or what the reason says
  uint64_t stop;   // the host stores it to end the kernels of this rank
  uint8_t excluded[kMaxCudaRanks];  // 1: kernels of this rank have excluded the rank
};

// What a rank has told last of its waits, and when this rank has seen that.
struct HeardBeat {
  uint64_t word;
  uint64_t when_ns;
};

// The excluded ranks of a rank, in its device memory.
struct Exclusions {
  RankMask dead;
  uint32_t is_unsettled;  // a wait has excluded a rank since results were last settled
  uint32_t reserved;
  unsigned long long beat_ns;  // when this rank last told that it waits
  HeardBeat heard[kMaxCudaRanks];
};

// The arguments of a kernel that waits and aborts need.  All pointers are device addresses.
struct SignalContext {
  int rank = 0;
  int num_ranks = 1;
  uint64_t timeout_ns = 0;
  FaultRecord* record = nullptr;           // of this rank
  std::byte* windows[kMaxCudaRanks] = {};  // of every rank
  int64_t abort_at = 0;                    // where a window has the abort words [R], by author
  Exclusions* exclusions = nullptr;        // null: no rank can be excluded
  bool excludes_missing = false;           // a wait that expires excludes the rank
  int64_t beats_at = 0;                    // where a window has the words [R] of ranks that wait

  MOEBIUS_HOST_DEVICE uint64_t* abort_words(int r) const {
    return reinterpret_cast<uint64_t*>(windows[r] + abort_at);
  }
};

// The error that `rank` reports for a fault, in the words of docs/protocol.md.  `timeout_ms` is the
// timeout of the waits.
CommError make_comm_error(int rank, uint64_t fault, uint64_t seen, int64_t timeout_ms);

}  // namespace moebius::comm
