// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the high-throughput kernels and their host agree on: where words lie in the control window,
// how rows go through shared memory, how much of it a block needs.  Plain C++; no GPU needed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/cuda/signals.h"

namespace moebius::comm {

inline constexpr int kMaxFields = 16;    // payloads of a call, then ids, weights, source token
inline constexpr int kMaxSegments = 96;  // bulk copies of one token
inline constexpr int kMaxItems = 64;     // shared-memory stages of one token
inline constexpr int kMaxCudaTopk = 32;  // one lane per slot
inline constexpr int kMaxBanks = 64;

// The control window of a rank.  Every part has one writer per source rank, except the abort word.
//   abort    the abort word (signals.h)
//   notices  [2, R, notice_words()] by parity of the epoch: what each source says before rows move
//   done     [R]: all rows of that source's dispatch stand in this rank's bank
//   ready    [R]: that rank's combine memory may be written for this epoch
// A word of a notice is {epoch | value}, valid by itself.
struct ControlLayout {
  int num_ranks = 1;
  int max_local_experts = 0;

  enum NoticeWord {
    kBank,          // own bank of this call
    kBankUnits,     // its size in units of 256 bytes
    kCapacityRows,  // rows its layout is made for; 0: as many as arrive
    kRowBytes,      // of all fields; the same on every rank
    kCopies,  // [R] copies to each rank, then [L] selections of each expert of the destination
  };
  MOEBIUS_HOST_DEVICE constexpr int notice_words() const {
    return kCopies + num_ranks + max_local_experts;
  }
  static constexpr int64_t kAbort = 0;
  static constexpr int64_t kLine = 128;
  MOEBIUS_HOST_DEVICE constexpr int64_t notice(uint32_t epoch, int source) const {
    return kLine + (static_cast<int64_t>(epoch & 1) * num_ranks + source) * notice_words() * 8;
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t done(int source) const {
    return round_up(notice(1, num_ranks)) + source * kLine;
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t ready(int source) const {
    return done(num_ranks) + source * kLine;
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t bytes() const { return ready(num_ranks); }

 private:
  MOEBIUS_HOST_DEVICE static constexpr int64_t round_up(int64_t offset) {
    return (offset + kLine - 1) / kLine * kLine;
  }
};

// As RowLayout::offset, for kernels: fields of `rows` rows each start at multiples of 256 bytes.
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

// `warps`, `stages`: as wanted, 0 = computed: as many warps as have two stages in
// `shared_bytes`, then as many stages as fit.  Throws InvalidArgument for rows beyond what a plan
// can hold.
StagePlan make_stage_plan(std::span<const PayloadShape> payloads,
                          int64_t shared_bytes,
                          int warps,
                          int stages);

// Shared memory of a dispatch block, in bytes from its start.
struct DispatchShared {
  int num_ranks = 1;
  int num_experts = 1;
  int num_fields = 1;
  int warps = 1;
  int stages = 1;
  uint32_t stage_bytes = 0;

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
  MOEBIUS_HOST_DEVICE constexpr uint32_t bytes() const {
    return histogram() + static_cast<uint32_t>(num_experts) * 4;
  }
};

// Part `index` of `parts` of [0, n): contiguous, sizes differ by at most one.
MOEBIUS_HOST_DEVICE constexpr int64_t part_begin(int64_t n, int index, int parts) {
  return n * index / parts;
}

// What the first block tells its host once the counts of all ranks are known; in pinned memory.
struct HostCounts {
  enum Status : uint32_t { kNothing, kMoved, kGrow };
  uint64_t word;                                   // {tag of the launch | status}, stored last
  uint32_t copies[kMaxCudaRanks * kMaxCudaRanks];  // [R, R], from row to column
};

}  // namespace moebius::comm
