// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The warps of a block of few_rows_gemm.cu share what is here: items, stages in shared memory, and
// the order of k in them.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/cuda/ptx.cuh"
#include "experts/cuda/gemm/gemm_plan.h"
#include "experts/cuda/gemm/tile_walk.cuh"
#include "experts/cuda/gemm/weight_values.h"

namespace moebius::cuda::few_rows {

using quant::Code;

inline constexpr unsigned kAll = 0xffffffffu;
inline constexpr int kWarp = 32;
inline constexpr int kEight = 8;
inline constexpr int kGroupWarps = 4;   // warps of a warpgroup
inline constexpr int kMmaRows = 16;     // the most rows of a tile that warps multiply by themselves
inline constexpr int kMostNumbers = 8;  // of rows by which the tiles of a kernel are multiplied

inline constexpr int kOwn = 16;  // columns of a warp
inline constexpr int kGroupColumns = kOwn * kGroupWarps;
inline constexpr int kSlab = 32;  // elements of k, for two products
inline constexpr int kMostStages = 11;
inline constexpr int kMostScaleSlots = kMostStages + 1;  // if each step has scales of its own
inline constexpr int kFewestStages = 4;

// Rows of a stage are tiles of 64 elements of k, swizzled as TMA does it for 128 bytes.  They come
// in one box, which has as many rows as are multiplied.
inline constexpr int kTileRowBytes = 128;

// Codes of a stage: 64 columns for each warpgroup that multiplies, swizzled as TMA does it for 64
// bytes.
inline constexpr int kStepBytes = kFewRowsStepBytes;  // of a column
inline constexpr int kBoxBytes = kGroupColumns * kStepBytes;

// Describes a block for tiles of up to `tile_rows` rows.  Few warps, with many registers each, have
// the sums of large tiles.
struct Block {
  int tile_rows;
  int groups;            // warpgroups that multiply
  int most_teams;        // of groups that take turns along k
  int worker_registers;  // of their threads
  int filler_registers;  // of the others
  int rows_step;         // a tile is multiplied by a multiple of so many rows

  constexpr int warps() const { return groups * kGroupWarps; }
  // One warp more than those that multiply requests stages.  Warpgroups want registers: all threads
  // begin with as many, and what the last warpgroup gives up, the others take.
  constexpr int threads() const {
    return (tile_rows <= kMmaRows ? warps() + 1 : warps() + kGroupWarps) * kWarp;
  }
  constexpr int columns() const { return groups * kGroupColumns; }  // if it is one team
  constexpr int code_bytes() const { return groups * kBoxBytes; }   // of a stage
};
constexpr Block block_of(int tile_rows) {
  return tile_rows <= kSmallFewRowsTile    ? Block{tile_rows, 4, 4, 112, 32, kEight}
         : tile_rows <= kMediumFewRowsTile ? Block{tile_rows, 3, 1, 152, 40, 4 * kEight}
                                           : Block{tile_rows, 2, 1, 232, 40, 4 * kEight};
}

// A tile is multiplied by a multiple of Block::rows_step, and by at least so many rows.
__host__ __device__ constexpr int fewest_multiplied(int tile_rows) {
  return tile_rows <= kMmaRows            ? kEight
         : tile_rows <= kSmallFewRowsTile ? tile_rows / 2
                                          : kSmallFewRowsTile;
}

// A step of a team along k.
template <Code kCode, int kRows>
struct Step {
  static constexpr int kWords = quant::code_bits(kCode) / 4;  // of eight codes
  static constexpr int kSlabs = kStepBytes * 8 / quant::code_bits(kCode) / kSlab;
  static constexpr int kK = kSlabs * kSlab;
  static_assert((kRows - fewest_multiplied(kRows)) / block_of(kRows).rows_step < kMostNumbers);
  // Returns by how many rows a tile that has `rows` is multiplied.
  __device__ __forceinline__ static int multiplied(int rows) {
    constexpr int kBy = block_of(kRows).rows_step;
    return max((rows + kBy - 1) / kBy * kBy, fewest_multiplied(kRows));
  }
};

// Each lane of a quad decodes eight codes of a slab.  By chunks, lane l has the 32 neighbours of
// the step that begin at 32 l, eight per slab.  They share a scale, which the lane fetches alone
// and multiplies its elements by (`folds`).  Otherwise a slab is 32 neighbours, whose sums may be
// scaled, and lane l has words l of its chunks of 16 bytes.
constexpr bool is_by_chunks(Code code, bool folds) {
  return code == Code::kE2M1 && folds;
}

// Scales of a column are loaded by chunks of so many bytes, or twice as many.
inline constexpr int kChunkBytes = 16;
inline constexpr int kOwnScaleSlots = 2;  // of a team whose threads fill them in turn

struct Args : GemmArgs {
  CUtensorMap codes;            // [G N, bytes of K], boxes of a team's columns x kStepBytes
  CUtensorMap x[kMostNumbers];  // ordered rows [M, K], in boxes of the rows multiplied
  CUtensorMap scales;           // [G N, bytes of scales], boxes of a team's columns x scale_bytes
  CUtensorMap units;            // f32 [ceil(M / 4), 4], boxes of unit_bytes(), see row_units
  const int32_t* index;         // of rows, see RowOperand; nullptr: none
  const float* scale_norms;     // [G, N], where scales of int4 go into elements
  int across;                   // blocks of columns
  int steps;                    // of each team
  int team_shift;               // 1 << team_shift teams
  int num_stages;
  int stage_bytes;
  int scale_shift;  // 1 << scale_shift elements of k share a scale
  uint32_t ends;    // bit s: sums are scaled before slab s of a step, where scales may change
  int scaled_k;     // elements of k that are scaled together
  int others_k;     // elements of k between two steps of a team
  uint32_t team_k;  // the same from the beginning of one step to that of the next
  // Scales are loaded by chunks (few_rows_scales.cuh).
  int chunk_steps;       // steps of a team that share a chunk
  int chunk_k;           // elements of k from the first of these steps to the first of the next
  bool has_scale_words;  // scales of a column are whole words of 32 bits
  // The scales of a chunk, of all teams, are in a slot, to which TMA brings them, or, by chunks of
  // codes, threads where it cannot.  0: threads keep them.
  int scale_slots;
  bool brings_scales;
  int scale_bytes;       // of a column in a slot
  int scale_slot_bytes;  // of a slot
  // [M], by which rows are multiplied that were multiplied by norms; nullptr: none were.  TMA
  // brings those of a small tile with the first stage of an item, since loads by threads would wait
  // behind all stages.  Items of large tiles are long, and leave no room for units.
  const float* row_units;
  // In tiles of int4 for the fewest rows elements keep their zero points.  So sums of each block of
  // 1 << sum_shift elements of k begin with minus the zero point times the sum of the row's
  // elements in the block.  TMA brings the latter, negative and times kWholeInt4Factor, with each
  // stage.  Where zero points are all the same, they have been multiplied by it, too.
  CUtensorMap sums;  // f32 [blocks of K, 2, sum_rows], see sum_place()
  int sum_rows;      // at least M + 1
  int sum_shift;
  int sums_of_stage;   // of a row, of all teams
  int sum_slot_bytes;  // for the sums of a stage
};

// Says whether elements keep their zero points in tiles of so many rows.
constexpr bool has_row_sums(Code code, int tile_rows) {
  constexpr int kMostRows = 48;  // to set more sums takes longer than to subtract zero points
  return code == Code::kU4 && tile_rows <= kMostRows;
}
// Such elements are codes times the first of these, and those in odd places 16 times as much.  Rows
// make up for that by the second.  Sums are as small until an item ends, so scales below 2^-120
// lose bits.
inline constexpr float kWholeInt4Factor = 0x1p-24f;
inline constexpr float kOddInt4Factor = 0x1p-4f;

// Says where the sums of a tile lie that begins with `row`: in which of two copies of the sums of
// all rows, of which the second has each a place further.  So pairs of a tile's sums are aligned as
// loads want them.
struct SumPlace {
  int copy;
  int first;  // of the box, aligned as TMA wants it
  int skipped;
};
__host__ __device__ constexpr SumPlace sum_place(int row) {
  constexpr int kOfVector = 4;
  const int copy = row % 2;
  return {copy, (row + copy) / kOfVector * kOfVector, (row + copy) % kOfVector};
}
constexpr int sums_of_box(int tile_rows) {
  return tile_rows + 4;
}

// TMA writes to multiples of so many bytes.
constexpr int aligned_slot(int bytes) {
  constexpr int kAlignment = 128;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The units of a small tile of `rows` rows, from the first one before it whose address TMA takes.
// Each Place has a slot for them.
inline constexpr int kUnitsOfChunk = 4;
constexpr int unit_bytes(int rows) {
  return (rows / kUnitsOfChunk + 1) * kUnitsOfChunk * int{sizeof(float)};
}
constexpr int unit_slot_bytes(int rows) {
  return rows > kSmallFewRowsTile ? 0 : aligned_slot(unit_bytes(rows));
}

struct Barriers {
  uint64_t full[kMostStages];             // codes and rows have arrived
  uint64_t empty[kMostStages];            // all warps that multiply have read them
  uint64_t scales_full[kMostScaleSlots];  // the same for the scales of a chunk
  uint64_t scales_empty[kMostScaleSlots];
};

// Where the stages of a block are, one after the other.
struct Ring {
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance(int num_stages) {
    if (++slot == num_stages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// An item is a tile of rows of a group times a block of columns.
__device__ __forceinline__ int num_items(const Args& p, const TileStarts& starts) {
  return starts.before[p.rows.num_groups] * p.across;
}
struct alignas(16) Place {
  int group;
  int column;  // first
  int rows;    // of the tile
  int row;     // first
};
// A block keeps the places of so many items: each stage may begin an item of its own, while the
// result of the item before them has not been stored.
inline constexpr int kMostPlaces = kMostStages + 1;
// Returns the bytes of all slots for units, if there are any; slots for sums of rows follow.
constexpr int all_unit_bytes(int tile_rows) {
  return kMostPlaces * unit_slot_bytes(tile_rows);
}

}  // namespace moebius::cuda::few_rows
