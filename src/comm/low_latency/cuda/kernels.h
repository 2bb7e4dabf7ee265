// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the host launches for LowLatency on a GPU.  All pointers are device addresses unless said
// otherwise; `stream` is a cudaStream_t.
//
// A call uses one of two *places* on its rank, which are output tensors and the records that tie a
// combine to its dispatch.  The host gives them out in turn.  The *bank* of the window is not the
// place: it follows the epoch, which the kernels advance, so that a captured graph may be replayed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/device/divisor.h"
#include "comm/low_latency/cuda/window_layout.h"
#include "core/ids.h"
#include "moebius/dtype.h"
#include "moebius/low_latency_rows.h"

namespace moebius::comm {

// The state of an object on a rank, in device memory, zero at first.
struct LowLatencyDeviceState {
  uint32_t epoch;    // the number of the latest dispatch
  uint32_t arrived;  // blocks that have read `epoch` in the running dispatch
  Exclusions exclusions;
  uint64_t unpacked[2];     // by bank: signal {epoch, 0} of the latest call that was received
  uint32_t place_epoch[2];  // by place: the epoch of its call
  uint32_t combined[2];     // by place: the epoch of the call that was combined last
  uint32_t combining;       // blocks of the running combine that have read `combined`
  uint32_t settling;        // blocks of the running launch that have read `is_unsettled`
  uint64_t selections;      // these two are for TransportStatistics
  uint64_t copies;
  uint64_t waited;                  // blocks of the running combine that have noted their waits
  uint64_t wait_ns[kMaxCudaRanks];  // of the running combine, the longest wait for each rank
};

// A block has two halves.  One sends; the other receives, beginning while the senders are at work.
// Senders receive, too, when they are done.
inline constexpr int kLowLatencyThreads = 1024;
inline constexpr int kLowLatencySendWarps = kLowLatencyThreads / 32 / 2;

// A launch with kSettlePhase follows that of a receive half, where missing ranks are excluded.  It
// receives anew, if a rank was excluded since the last time, and does nothing otherwise.  So
// results have all rows of a rank, or none: until then some warps may have found rows that others
// missed.
enum LowLatencyPhases : int { kSendPhase = 1, kReceivePhase = 2, kSettlePhase = 4 };

struct LowLatencyCall {
  SignalContext signals;
  CudaLowLatencyLayout layout;
  Divisor ranks;  // by layout.num_ranks
  Divisor parts;  // by layout.num_parts
  int num_experts;
  int num_local;
  const uint32_t* placement;  // [E]: the pair (signals.h) of an expert's rank and its index there
  LowLatencyDeviceState* state;
  int place;
  int phases;
  // These belong to the place.  The receive half of dispatch writes them, the send half of combine
  // reads them.
  int32_t* num_messages;  // [R]: messages of each source
  int32_t* message_rows;  // [max_tokens, R, K + 1]: a message's row of each selection in
                          // [L, rows] or -1, then its token

  MOEBIUS_HOST_DEVICE int rank() const { return signals.rank; }
  MOEBIUS_HOST_DEVICE std::byte* window(int r) const { return signals.windows[r]; }
};

struct LowLatencyDispatchCall {
  LowLatencyCall call;
  DType dtype;
  LowLatencyCast cast;
  int max_tokens;  // the room of this call
  LowLatencyKind kind;
  uint32_t kind_tag;  // of `kind`
  int64_t scale_at;   // where scales stand in a message
  int scale_bytes;    // of a row, where scales were given; else 0
  DispatchSharedMap shared;
  // For the send half.
  const std::byte* x;        // [T, H]
  const std::byte* x_scale;  // [T, scale_bytes], where scales were given
  Ids ids;                   // [T, K]
  const int32_t* tags;       // [T] or null
  int num_tokens;
  // For the receive half.
  LowLatencyScales scales;
  std::byte* out;        // [L, rows, H]
  std::byte* out_scale;  // see LowLatency::State::scale_spec
  int32_t* out_tags;     // [L, rows]
  int32_t* out_tokens;   // [L, rows]
  int32_t* out_count;    // [L]
  int64_t* out_ranges;   // [L, R]
  int64_t* expert_rows;  // [L]: rows received in all calls
  int32_t* received;     // [L], the caller's, or null
  int64_t* wait_us;      // [R], the caller's, or null

  MOEBIUS_HOST_DEVICE int64_t max_rows() const {
    return int64_t{max_tokens} * call.layout.num_ranks;
  }
};

struct LowLatencyCombineCall {
  LowLatencyCall call;
  DType dtype;
  const std::byte* x;    // [L, max_tokens * R, H]
  Ids ids;               // [T, K]
  const float* weights;  // [T, K]
  std::byte* out;        // [T, H]
  int64_t* wait_us;      // [R], the caller's, or null
  int num_tokens;
  LowLatencySum sum;
  LowLatencyCoding coding;
  bool in_bulk;     // rows go through shared memory, if they and x are aligned to 16 bytes
  int unit_parts;   // parts of a row that a warp sends at a time; 0: by the number of rows
  int stage_parts;  // parts for which a sender has room in shared memory
};

// The stage of a sender of combine holds at most so many units, each in a slot.
inline constexpr int kCombineSlots = 8;

// The shared memory of a block of combine: each sender has a stage, and an mbarrier per slot of it.
struct CombineSharedMap {
  int64_t stage_bytes;
  MOEBIUS_HOST_DEVICE constexpr int64_t stage(int warp) const { return warp * stage_bytes; }
  MOEBIUS_HOST_DEVICE constexpr int64_t barrier(int warp) const {
    return kLowLatencySendWarps * stage_bytes + 8 * kCombineSlots * warp;
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t bytes() const { return barrier(kLowLatencySendWarps); }

  MOEBIUS_HOST_DEVICE static constexpr CombineSharedMap make(int64_t element_bytes,
                                                             int stage_parts) {
    return {stage_parts * kPartElements * element_bytes};
  }
  // The most parts of a stage that fit into `bytes`, but no more than two rows have.
  static constexpr int max_stage_parts(int64_t element_bytes, int num_parts, int64_t bytes) {
    int parts = 2 * num_parts;
    while (parts > 1 && make(element_bytes, parts).bytes() > bytes) {
      --parts;
    }
    return parts;
  }
};

// The most parts of a unit.  A stage has room for two, so that one is loaded while another is
// stored.
MOEBIUS_HOST_DEVICE constexpr int max_unit_parts(int stage_parts) {
  return stage_parts > 1 ? stage_parts / 2 : 1;
}

// The parts of a row that a warp sends at a time, chosen so that all warps have work once.
MOEBIUS_HOST_DEVICE constexpr int choose_unit_parts(int64_t num_messages,
                                                    int num_parts,
                                                    int64_t num_warps,
                                                    int most) {
  const int64_t parts = (num_messages * num_parts + num_warps - 1) / num_warps;
  return static_cast<int>(parts < 1 ? 1 : parts > most ? int64_t{most} : parts);
}

// Load the kernels that calls with this dtype may launch on the device, ahead of the first.
void load_low_latency_dispatch(int device, DType dtype, int num_ranks, int64_t shared_bytes);
void load_low_latency_combine(int device, DType dtype, LowLatencySum sum, int64_t shared_bytes);

// Launch it after ranks were excluded.  The live ranks tell each other the epoch of their latest
// dispatch, await each other, and go on from the latest of these; then the faults so far are
// forgotten.  `number` says how often ranks were excluded, and is the same on every live rank.  A
// rank that does not come is reported in the record.
void launch_low_latency_resume(const LowLatencyCall& call,
                               uint32_t number,
                               int device,
                               void* stream);
void load_low_latency_resume(int device);

struct LowLatencyGrid {
  int num_blocks;
  int64_t shared_bytes;  // of a block
  int device;
  void* stream;
};
void launch_low_latency_dispatch(const LowLatencyDispatchCall& call, const LowLatencyGrid& grid);
void launch_low_latency_combine(const LowLatencyCombineCall& call, const LowLatencyGrid& grid);

}  // namespace moebius::comm
