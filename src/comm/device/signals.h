// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Signals between GPUs, and what becomes of a wait that fails: the words that device and host
// share.
//
// A signal (core/cuda/signal_word.h) lies in a window.  Its epoch is the number of a call of the
// object that owns the window, from 1; it is kept in device memory and advanced by the kernels
// themselves.
//
// A wait that expires becomes a Fault, packed into one word.  The kernel that finds it stores it as
// its rank's abort word in every rank's window, the own first, and into its host's FaultRecord;
// kernels that see an abort word end at once, and hand it to their host in the same way.  That of a
// rank given up is none.  Why a word per author: what a rank that was given up stores must not take
// the place of what a live one says.
#pragma once

#include <cstdint>
#include <string>

#include "core/cuda/signal_word.h"
#include "moebius/error.h"

namespace moebius::comm {

inline constexpr int kMaxCudaRanks = 64;

// Two values in that of a signal, each below 65536.
MOEBIUS_HOST_DEVICE constexpr uint32_t make_pair(uint32_t first, uint32_t second) {
  return first << 16 | second;
}
MOEBIUS_HOST_DEVICE constexpr uint32_t pair_first(uint32_t value) {
  return value >> 16;
}
MOEBIUS_HOST_DEVICE constexpr uint32_t pair_second(uint32_t value) {
  return value & 0xffffu;
}

// In which part of which operation a wait took place.
enum class SignalOp : uint8_t {
  kNone,
  kDispatchCounts,
  kDispatch,
  kCachedDispatch,
  kCombine,
  kLowLatencyDispatch,
  kLowLatencyCombine,
  kLowLatencyResume,
};
const char* name(SignalOp op);  // "dispatch counts"

enum class FaultReason : uint8_t {
  kNone,
  kExpired,   // the peer gave no signal in time
  kStopped,   // the author's host gave up; it knows why
  kOverflow,  // {rows | capacity}: more rows go to the guilty than its call has room for
  kMismatch,  // {its | own}: the guilty moves rows of another size
  kBadId,     // {token | id}: no such expert
  kNoRoom,    // {expert | named, room}: tokens of the guilty name the expert too often
};

struct Fault {
  FaultReason reason = FaultReason::kNone;
  SignalOp op = SignalOp::kNone;
  uint8_t author = 0;  // rank that found it
  uint8_t guilty = 0;  // rank that was waited for
  uint32_t epoch = 0;

  bool operator==(const Fault&) const = default;
};
// Never 0 for a fault.
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

// Whether a rank of the mask {bit r: rank r is given up} has found the fault; it may still run, and
// miss those that no longer talk to it.
MOEBIUS_HOST_DEVICE constexpr bool is_from_dead(uint64_t fault, uint64_t dead) {
  return fault != 0 && (dead >> unpack_fault(fault).author & 1) != 0;
}
// Whether the live ranks may go on after the fault: it is of, or about, a rank given up; or none.
MOEBIUS_HOST_DEVICE constexpr bool may_go_on(uint64_t fault, uint64_t dead) {
  return fault == 0 || is_from_dead(fault, dead) || (dead >> unpack_fault(fault).guilty & 1) != 0;
}

// In pinned host memory mapped into the device, one per object and rank, zero at first.
struct FaultRecord {
  uint64_t fault;  // packed, stored by the device, last
  uint64_t seen;   // the author's alone: the signal that was there, or {|} as the reason says
  uint64_t stop;   // stored by the host: kernels of this rank end
};
static_assert(sizeof(FaultRecord) == 24);

// Of a kernel's arguments: what waits and aborts need.  All pointers are device addresses.
struct SignalContext {
  int rank = 0;
  int num_ranks = 1;
  uint64_t timeout_ns = 0;
  FaultRecord* record = nullptr;        // of this rank
  uint64_t* abort[kMaxCudaRanks] = {};  // the abort words [R] in each rank's window, by author
  const uint64_t* dead = nullptr;       // mask of the ranks given up; null: none can be
};

// The error of `rank`, in the words of docs/protocol.md.  `timeout_ms` as the waits had it.
CommError make_comm_error(int rank, uint64_t fault, uint64_t seen, int64_t timeout_ms);

}  // namespace moebius::comm
