// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the high-throughput kernels and their host agree on: where words lie in the control window,
// how rows go through shared memory, how much of it a block needs.  Plain C++; no GPU needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/device/signals.h"

namespace moebius::comm {

inline constexpr int kMaxFields = 16;    // the payloads of a call, then ids, weights, source token
inline constexpr int kMaxSegments = 96;  // bulk copies of one token
inline constexpr int kMaxItems = 64;     // shared-memory stages of one token
inline constexpr int kMaxCudaTopk = 32;  // one lane per slot
inline constexpr int kMaxBanks = 64;
// The most waves in which rows come (row_arrivals.h).  Between two GPUs 8 and 15 waves took the
// same time (docs/performance/gpu_experts.md); among more GPUs, more waves let GEMMs begin sooner.
inline constexpr int kWaves = 16;
inline constexpr int kWaveChunks = 4;  // chunks of 32 tokens that a warp sends in waves, at most

// The control window of a rank.  Every part has one writer per source rank.
//   abort    [R]: each rank's abort word (signals.h)
//   notices  [2, R, notice_words()] by parity of the epoch: what each source says before rows move
//   done     [R]: all rows of that source's dispatch stand in this rank's bank
//   ready    [R]: that rank's combine memory may be written for this epoch
//   arrived  [kWaves, R]: the rows of a wave and of the waves before it stand in this rank's bank
// A word of a notice is {epoch | value}, valid by itself.
struct ControlLayout {
  int num_ranks = 1;
  int max_local_experts = 0;

  enum NoticeWord {
    kBank,           // the source's bank of this call
    kBankUnits,      // its size in units of 256 bytes
    kCapacityRows,   // the rows that its layout is made for; 0: as many as arrive
    kRowBytes,       // of all fields; the same on every rank
    kEarlyRows,      // DispatchInput::early_rows
    kMostEarlyRows,  // DispatchInput::most_early_rows
    kCopies,  // [R] copies to each rank, then [L] selections of each expert of the destination
  };
  MOEBIUS_HOST_DEVICE constexpr int notice_words() const {
    return kCopies + num_ranks + max_local_experts;
  }
  static constexpr int64_t kAbort = 0;
  static constexpr int64_t kLine = 128;
  MOEBIUS_HOST_DEVICE constexpr int64_t notice(uint32_t epoch, int source) const {
    return round_up(kAbort + 8 * num_ranks) +
           (static_cast<int64_t>(epoch & 1) * num_ranks + source) * notice_words() * 8;
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t done(int source) const {
    return round_up(notice(1, num_ranks)) + source * kLine;
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t ready(int source) const {
    return done(num_ranks) + source * kLine;
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t arrived(int wave, int source) const {
    return ready(num_ranks) + (wave * num_ranks + source) * 8;
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t bytes() const { return arrived(kWaves, 0); }

 private:
  MOEBIUS_HOST_DEVICE static constexpr int64_t round_up(int64_t offset) {
    return (offset + kLine - 1) / kLine * kLine;
  }
};

// RowLayout::offset for kernels: the fields of `rows` rows start at multiples of 256 bytes each.
inline constexpr int64_t kFieldAlignment = 256;
MOEBIUS_HOST_DEVICE constexpr int64_t field_span(int64_t field_bytes, int64_t rows) {
  return (field_bytes * rows + kFieldAlignment - 1) / kFieldAlignment * kFieldAlignment;
}

// A piece of a token's row that goes by one bulk copy.
struct Segment {
  uint32_t field = 0;
  uint32_t offset = 0;  // in the field's row
  uint32_t bytes = 0;
  uint32_t stage_offset = 0;
};
// The segments that share a stage.
struct StageItem {
  uint16_t first = 0;
  uint16_t count = 0;
  uint32_t bytes = 0;
};

// How the payloads of a token reach its destinations: in bulk copies, by way of shared-memory
// stages that each warp has for itself, or, where sizes or addresses are odd, by plain stores.
struct StagePlan {
  int warps = 1;
  int stages = 1;
  uint32_t stage_bytes = 0;  // a multiple of 128
  std::vector<Segment> segments;
  std::vector<StageItem> items;  // at least one
  std::vector<uint8_t> in_bulk;  // by payload
};

// One payload as the plan sees it.
struct PayloadShape {
  int64_t row_bytes = 0;
  bool is_aligned = true;  // its memory starts at a multiple of 16 bytes
};

inline constexpr int kMaxWarps = 16;
inline constexpr int kMaxStages = 8;

// The plan has `warps` and `stages` as given.  With 0 it has as many warps as can have two stages
// each in `shared_bytes`, then as many stages as fit.  Throws InvalidArgument for rows beyond what
// a plan can hold.
StagePlan make_stage_plan(std::span<const PayloadShape> payloads,
                          int64_t shared_bytes,
                          int warps,
                          int stages);

// Shared memory of a dispatch block, in bytes from its start.
struct DispatchShared {
  int num_ranks = 1, num_experts = 1, num_fields = 1;
  int warps = 1, stages = 1;
  uint32_t stage_bytes = 0;
  bool in_waves = false;  // rows may go in waves

  // The stages come first, since bulk copies want the alignment.
  MOEBIUS_HOST_DEVICE constexpr uint32_t barriers() const {  // u64 [warps, stages]
    return static_cast<uint32_t>(warps * stages) * stage_bytes;
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t field_base() const {  // u64 [fields, R]
    return barriers() + static_cast<uint32_t>(warps * stages) * 8;
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t notices() const {  // u32 [R, kCopies + R]
    return field_base() + static_cast<uint32_t>(num_fields * num_ranks) * 8;
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t row_base() const {  // u32 [R]
    return notices() + static_cast<uint32_t>(num_ranks * (ControlLayout::kCopies + num_ranks)) * 4;
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t total_rows() const {  // u32 [R]
    return row_base() + static_cast<uint32_t>(num_ranks) * 4;
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t running() const {  // u32 [R]
    return total_rows() + static_cast<uint32_t>(num_ranks) * 4;
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t warp_counts() const {  // u32 [warps, R]
    return running() + static_cast<uint32_t>(num_ranks) * 4;
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t histogram() const {  // u32 [E]
    return warp_counts() + static_cast<uint32_t>(warps * num_ranks) * 4;
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t waves_sent() const {  // u32 [kWaves]
    return histogram() + static_cast<uint32_t>(num_experts) * 4;
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t due() const {  // u32 [warps, kWaves, kWaveChunks]
    return waves_sent() + kWaves * 4;
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t bytes() const {
    return due() + (in_waves ? static_cast<uint32_t>(warps * kWaves * kWaveChunks) * 4 : 0);
  }
};

// Epochs wrap.  Calls without waves do not store the words `arrived`, and kernels may look at these
// long after (row_arrivals.cuh).  So now and then a dispatch refreshes them with its epoch; no word
// is then ever 2^31 calls old, where it would be taken for one of a call to come.  Why this does
// not depend on the epoch alone: the caller decides which epochs are those of dispatches.
inline constexpr uint32_t kCallsBetweenRefreshes = 1u << 20;
MOEBIUS_HOST_DEVICE constexpr bool is_refresh_due(uint32_t epoch, uint32_t last_refresh) {
  return epoch - last_refresh >= kCallsBetweenRefreshes;
}

// The most tokens that a rank can send in waves.
constexpr int64_t most_tokens_in_waves(int num_blocks, int num_warps) {
  return int64_t{num_blocks} * num_warps * kWaveChunks * 32;
}

// The experts of a wave, when the rank with most experts has so many.
constexpr int experts_per_wave(int max_local_experts) {
  return (max_local_experts + kWaves - 2) / (kWaves - 1);
}

// The begin of part `index` of [0, n) in `parts` contiguous parts, whose sizes differ by at most
// one.
MOEBIUS_HOST_DEVICE constexpr int64_t part_begin(int64_t n, int index, int parts) {
  return n * index / parts;
}

// What the first block tells its host once the counts of all ranks are known.  It lies in pinned
// memory, which ends after the counts of the ranks that there are.
struct HostCounts {
  enum Status : uint32_t { kNothing, kMoved, kGrow };
  uint64_t word;                                   // {tag of the launch | status}, stored last
  uint32_t epoch;                                  // of the call
  uint32_t in_waves;                               // 1: its rows come in waves
  uint32_t copies[kMaxCudaRanks * kMaxCudaRanks];  // [R, R], from row to column

  static constexpr int64_t bytes(int num_ranks) { return 16 + int64_t{4} * num_ranks * num_ranks; }
};
static_assert(offsetof(HostCounts, copies) == 16);

// Combine: every holder of rows pushes them, chunk by chunk, into the windows of the ranks that own
// their tokens.  The window of an owner has a slot for each row, by holder and then in the holder's
// order, and after these the weights of each slot, if weights are combined, too.  A second window
// has one flag per chunk.  Rows that an owner holds itself stay where they are.

inline constexpr int64_t kChunkBytes = 56 * 1024;
constexpr uint32_t chunk_rows(int64_t row_bytes) {
  const int64_t rows = row_bytes > 0 ? kChunkBytes / row_bytes : 64;
  return static_cast<uint32_t>(rows < 1 ? 1 : rows > 64 ? 64 : rows);
}
MOEBIUS_HOST_DEVICE constexpr uint32_t num_chunks(uint32_t rows, uint32_t rows_per_chunk) {
  return (rows + rows_per_chunk - 1) / rows_per_chunk;
}

// The copies of one owner's tokens at one holder.
struct CombinePair {
  uint32_t rows = 0;
  uint32_t first_row = 0;   // among the holder's rows
  uint32_t first_slot = 0;  // in the owner's window
  uint32_t first_flag = 0;
};
// copies is [R, R], from row (owner) to column (holder).
MOEBIUS_HOST_DEVICE constexpr CombinePair combine_pair(
    const uint32_t* copies, int num_ranks, int owner, int holder, uint32_t rows_per_chunk) {
  CombinePair pair;
  for (int source = 0; source < owner; ++source) {
    pair.first_row += copies[source * num_ranks + holder];
  }
  for (int h = 0; h < holder; ++h) {
    const uint32_t rows = h == owner ? 0 : copies[owner * num_ranks + h];
    pair.first_slot += rows;
    pair.first_flag += num_chunks(rows, rows_per_chunk);
  }
  pair.rows = copies[owner * num_ranks + holder];
  return pair;
}
// Where an owner's rows and their flags go.
struct CombineWindows {
  std::byte* slots;
  uint64_t* flags;
};
// The number of slots of an owner.
MOEBIUS_HOST_DEVICE constexpr uint32_t combine_slots(const uint32_t* copies,
                                                     int num_ranks,
                                                     int owner) {
  uint32_t slots = 0;
  for (int h = 0; h < num_ranks; ++h) {
    slots += h == owner ? 0 : copies[owner * num_ranks + h];
  }
  return slots;
}
MOEBIUS_HOST_DEVICE constexpr int64_t combine_weights_offset(uint32_t slots, int64_t row_bytes) {
  return field_span(row_bytes, slots);
}

// The bytes that an owner's two windows need for `slots` rows.
struct CombineRoom {
  int64_t slots = 0;
  int64_t flags = 0;
};
constexpr CombineRoom combine_room(int64_t slots,
                                   int64_t row_bytes,
                                   int64_t weights_bytes,
                                   int num_ranks) {
  return {combine_weights_offset(static_cast<uint32_t>(slots), row_bytes) + slots * weights_bytes,
          (slots / chunk_rows(row_bytes) + num_ranks) * 8};
}

inline constexpr int kCombineWarps = 20;
inline constexpr int kPushWarps = 4;  // those of them that push first and sum later
inline constexpr int kMaxPushWarps = 8;
inline constexpr int kPushStageBytes = 14 * 1024;

// Shared memory of a combine block, in bytes from its start.
struct CombineShared {
  int num_ranks = 1;
  int push_warps = kPushWarps;
  int stages = 2;

  MOEBIUS_HOST_DEVICE constexpr uint32_t barriers() const {  // u64 [push_warps, stages]
    return static_cast<uint32_t>(push_warps * stages) * kPushStageBytes;
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t rows() const {  // u64 [kCombineWarps, R + 2]
    return barriers() + static_cast<uint32_t>(push_warps * stages) * 8;
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t weights() const {  // u64 [kCombineWarps, R]
    return rows() + static_cast<uint32_t>(kCombineWarps * (num_ranks + 2)) * 8;
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t pushes() const {  // CombinePair [R], by owner
    return weights() + static_cast<uint32_t>(kCombineWarps * num_ranks) * 8;
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t receipts() const {  // CombinePair [R], by holder
    return pushes() + static_cast<uint32_t>(num_ranks) * sizeof(CombinePair);
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t windows() const {  // CombineWindows [R], by owner
    return receipts() + static_cast<uint32_t>(num_ranks) * sizeof(CombinePair);
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t slots() const {  // u32 [R], of each owner
    return windows() + static_cast<uint32_t>(num_ranks) * sizeof(CombineWindows);
  }
  MOEBIUS_HOST_DEVICE constexpr uint32_t bytes() const {
    return slots() + static_cast<uint32_t>(num_ranks) * 4;
  }
};

}  // namespace moebius::comm
