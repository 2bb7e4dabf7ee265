// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Shared memory of the grouped GEMM's kernel, and its ring of stages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/cuda/ptx.cuh"
#include "experts/cuda/gemm/sm90/launch.h"
#include "experts/cuda/gemm/sm90/schedule.h"
#include "moebius/dtype.h"

namespace moebius::cuda::sm90 {

inline constexpr int kBoxBytesA = kBoxRowsA * kBlockBytes;
inline constexpr int kBoxBytesB = kBoxRowsB * kBlockBytes;
inline constexpr int kBytesA = kTileRows * kBlockBytes;
inline constexpr int kBytesB = kTileColumns * kBlockBytes;
inline constexpr int kStageBytes = kBytesA + kBytesB;
inline constexpr int kScaleBlock = 128;  // elements of K, and of N, that share a scale
inline constexpr int kWarp = 32;
inline constexpr int kWarpgroup = 128;
inline constexpr int kConsumers = 2;  // warpgroups
inline constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
inline constexpr int kConsumerWarps = kConsumers * kWarpgroup / kWarp;
inline constexpr int kRowWarps = 2;  // warps that copy rows of a named one by one
inline constexpr int kClusterSize = 2;

inline constexpr int kResultBytes = kStoreRows * kTileColumns * 2;  // a warp's rows, in 16 bits

inline constexpr int kChunkBytes = 2048;  // codes that a decoding warp requests at once

// A decoding warp's chunks of codes, with the scales of their blocks.
template <int kNumChunks>
struct alignas(16) CodeRing {
  static constexpr int kChunks = kNumChunks;
  uint8_t codes[kChunks][kChunkBytes];
  uint8_t scales[kChunks][kChunkBytes / 8];
  uint64_t full[kChunks];
};

template <Operands kOperands,
          typename OutType,
          bool kActivated = false,
          bool kDecoding = false,
          bool kInBulk = false>
struct Config {
  static constexpr bool kHasBlockScales = kOperands == Operands::kScaledF8E4M3;
  static constexpr bool kIsFp8 = kOperands == Operands::kF8E4M3 || kHasBlockScales;
  static constexpr bool kIsF16 = is_f16(kOperands);
  static constexpr bool kIsInt8 = kOperands == Operands::kInt8;
  static constexpr bool kIsScaled = has_scaled_sums(kOperands);
  static constexpr bool kStagesHaveScales = kHasBlockScales || kIsScaled;
  // Scales of columns may be in 16 bits.
  static constexpr bool kTakesNarrowScales = kOperands == Operands::kF8E4M3 || kIsInt8;
  // The warps of a CTA that decode weights, as far as shared memory has room for their codes.
  static constexpr bool kDecodes = kDecoding;
  static constexpr int kDecoders = !kDecodes ? 0 : kIsScaled ? 2 : 3;
  using Codes = CodeRing<kIsScaled ? 2 : 3>;
  using Out = OutType;
  using Sum = std::conditional_t<kIsInt8, int32_t, float>;  // the type of the tensor cores' sums
  static constexpr bool kActivates = kActivated;
  static constexpr bool kStoresInBulk = kInBulk;  // whole tiles, see bulk_store.cuh
  static_assert(!kInBulk || (is_8_bit(kOperands) && !kActivates && !kDecodes && sizeof(Out) == 2));
  static constexpr bool kQuantizes = std::is_same_v<Out, F8E4M3>;
  static constexpr bool kFindsScales = kQuantizes && kHasBlockScales;  // else they are given
  // A row's scale covers the columns of a whole tile, and scales of b are copied for as many
  // columns.
  static constexpr bool kCutsItems = !kFindsScales && !kIsScaled;
  // Results that are stored in bulk take a stage's place.
  static constexpr int kStages = kStoresInBulk ? 3 : 4;
  // The registers of a thread.  At launch all 3 warpgroups have 168.
  static constexpr int kConsumerRegisters = 224;
  static constexpr int kProducerRegisters = 56;
  static constexpr int kBlockElements = is_8_bit(kOperands) ? kBlockBytes : kBlockBytes / 2;
  // The threads of a CTA that fill stages: one for boxes, and whole warps for what threads copy.
  static __device__ __forceinline__ int filling_threads(const Args& args) {
    return 1 + kWarp * (args.a_rows != nullptr ? kRowWarps : kStagesHaveScales ? 1 : 0);
  }
};

// The number of scales along K in a stage of scaled bf16 or f16.
template <typename Config>
__device__ __forceinline__ int scale_parts(const Args& args) {
  constexpr int kMost = Config::kBlockElements / kScaleStep;
  return args.scale_block % Config::kBlockElements == 0 ? 1 : kMost;
}

// The row of a where row `row` of the groups lies.
__device__ __forceinline__ int row_of_a(const Args& args, int row) {
  return args.a_rows != nullptr ? args.a_rows[row] : row;
}

// Says what a consumer has to do from a stage on; the thread that fills the stage writes it.
struct Work {
  int group;
  int row;       // first row of out, and of a or of a_rows
  int num_rows;  // 0: there is nothing left to do
  int column;
  int is_small;
  int is_narrow;  // kNarrowColumns of a small tile, by the first warpgroup
};

// Says what the threads that fill stages have to do for a consumer's work.
template <bool kDecodes>
struct Plan {
  Work work;
  bool shares_b;  // see Tile
  int boxes;      // of rows
};
template <>
struct Plan<true> {
  Work work;
  bool shares_b;
  int boxes;
  int slot;  // of the group in b
};
template <typename Config>
using PlanOf = Plan<Config::kDecodes>;

// Warps that decode have their codes here, and look up the groups that have rows, and the index of
// a group among these.
template <typename Config, bool kDecodes>
struct Decoding {};
template <typename Config>
struct Decoding<Config, true> {
  typename Config::Codes codes[Config::kDecoders];
  int num_used;
  uint8_t used[quant::kMostDecodedAhead];
  uint8_t used_index[quant::kMostDecodedAhead];
};

// Shared memory: stages (1024-byte aligned), barriers, groups.
template <typename Config>
struct Shared {
  uint8_t stages[Config::kStages][kStageBytes];  // a, then b
  // Each consumer warp has here its rows of the tile that is being stored.  They are 128-byte
  // aligned, as they follow the stages.
  uint8_t results[kConsumerWarps][Config::kStoresInBulk ? kResultBytes : 16];
  float a_scale[Config::kStages][Config::kHasBlockScales ? kTileRows : 1];
  float b_scale[Config::kStages][2];  // of either half of the columns
  // For scaled bf16; there are scale_parts() of them in use.
  float column_scale[Config::kStages][2][Config::kIsScaled ? kTileColumns : 4];
  Work work[Config::kStages];       // of the tile whose first block a stage has
  uint64_t full[Config::kStages];   // awaits the bytes of boxes, and what threads copy
  uint64_t empty[Config::kStages];  // awaits the consumer warps of both CTAs
  uint64_t plan_full;
  uint64_t plan_empty;  // awaits the threads that fill stages
  uint64_t item_full;   // in rank 1
  uint64_t item_empty;  // in rank 0: awaits rank 1
  PlanOf<Config> plan;  // of the next tile
  int item;             // in rank 1
  int cuts_items;       // 1: each item is cut into two
  int first_items[kMaxGroups + 1];
  int group_begin[kMaxGroups];
  int group_rows[kMaxGroups];
  // Each warp's largest magnitude of a row, for small tiles whose rows get scales; used in turn.
  float row_max[2][Config::kFindsScales ? kSmallRows : 1][kConsumerWarps];
  Decoding<Config, Config::kDecodes> decoding;
};

// The columns of N in a box.
template <typename Config>
__device__ __forceinline__ int box_columns(const Work& work) {
  return Config::kCutsItems && work.is_narrow != 0 ? kNarrowColumns / 2 : kBoxRowsB;
}
// The first column of either box of a tile.  The boxes are neighbours, or the second has the
// columns of up that belong to the first one's columns of gate.
template <typename Config>
__device__ __forceinline__ int box_column(const Args& args, const Work& work, int box) {
  if constexpr (Config::kActivates) {
    return work.column / 2 + box * (args.n / 2);
  } else {
    return work.column + box * box_columns<Config>(work);
  }
}

// A place in the ring of stages.  The warps that fill the ring and those that empty it each go
// through it on their own.  Why it computes shared addresses: the compiler would work out that of
// an object anew at every use.
template <typename Config>
struct Ring {
  uint32_t base;                // of Shared
  uint32_t lane = ptx::lane();  // of this thread
  int stage = 0;
  uint32_t parity = 0;

  // Called by whole warps.
  __device__ __forceinline__ explicit Ring(const Shared<Config>& shared)
      : base(ptx::uniform(ptx::shared_address(&shared))) {}

  __device__ __forceinline__ uint32_t a(int of_stage) const {
    return base + offsetof(Shared<Config>, stages) + of_stage * kStageBytes;
  }
  __device__ __forceinline__ uint32_t b(int of_stage) const { return a(of_stage) + kBytesA; }
  __device__ __forceinline__ uint32_t a() const { return a(stage); }
  __device__ __forceinline__ uint32_t b() const { return b(stage); }
  __device__ __forceinline__ uint32_t full(int of_stage) const {
    return base + offsetof(Shared<Config>, full) + of_stage * sizeof(uint64_t);
  }
  __device__ __forceinline__ uint32_t full() const { return full(stage); }
  __device__ __forceinline__ uint32_t empty(int of_stage) const {
    return base + offsetof(Shared<Config>, empty) + of_stage * sizeof(uint64_t);
  }
  __device__ __forceinline__ float a_scale(int row) const {
    return ptx::ld_shared(base + offsetof(Shared<Config>, a_scale) +
                          (stage * kTileRows + row) * sizeof(float));
  }
  __device__ __forceinline__ float b_scale(int half) const {
    return ptx::ld_shared(base + offsetof(Shared<Config>, b_scale) +
                          (2 * stage + half) * sizeof(float));
  }

  __device__ __forceinline__ float column_scale(int part, int column) const {
    return ptx::ld_shared(base + offsetof(Shared<Config>, column_scale) +
                          ((2 * stage + part) * kTileColumns + column) * sizeof(float));
  }

  __device__ __forceinline__ void advance() {
    if (++stage == Config::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void await_full() const { await_full(stage); }
  // of_stage is in the same round.
  __device__ __forceinline__ void await_full(int of_stage) const {
    ptx::mbarrier_sleep_parity(full(of_stage), parity);
  }
  // For a new barrier the phase before the first counts as complete.
  __device__ __forceinline__ void await_empty() const {
    ptx::mbarrier_sleep_parity(empty(stage), parity ^ 1);
  }
  // Called by every consumer warp once it has read the stage.  Both CTAs are told, since both fill
  // it, by multicast.
  __device__ __forceinline__ void release(int of_stage) const {
    __syncwarp();  // all lanes have read it
    if (lane < kClusterSize) {
      ptx::mbarrier_arrive_cluster(ptx::cluster_address(empty(of_stage), lane));
    }
  }
};

template <typename Config>
__device__ __forceinline__ int num_blocks(const Args& args) {
  return (args.k + Config::kBlockElements - 1) / Config::kBlockElements;
}

}  // namespace moebius::cuda::sm90
