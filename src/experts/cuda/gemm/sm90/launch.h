// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The arguments that the host passes to the kernels of kernel.cuh.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/cuda/fetch_ahead.h"
#include "experts/cuda/gemm/dequant/decode_args.h"
#include "experts/cuda/gemm/sm90/schedule.h"
#include "moebius/dtype.h"
#include "moebius/row_arrivals.h"
#include "quant/decoded_room.h"

namespace moebius::cuda::sm90 {

inline constexpr int kBlockBytes = 128;  // bytes of K in a stage: the width of TMA's swizzle
inline constexpr int kBoxRowsA = 32;
inline constexpr int kBoxRowsB = 128;
inline constexpr int kStoreRows = 16;  // a warp's rows of a tile
inline constexpr int kMaxGroups = 1024;

// In shared memory the columns of out (rows of b) are in an order that makes a thread's sums
// neighbours.  Of every 32 columns, 8 l + 2 j + i is at 8 j + 2 l + i (j and l below 4, i below 2).
// Lane l of a quad has columns 2 l + i of every eight in D, see wgmma.cuh.
inline constexpr int kColumnsInOrder = 32;

// Scaled: scales change along k.  With the others a scale is that of a row or of a column.
enum class Operands : uint8_t {
  kBF16,
  kF16,
  kScaledBF16,
  kScaledF16,
  kF8E4M3,
  kScaledF8E4M3,
  kInt8,
};
constexpr bool is_f16(Operands operands) {
  return operands == Operands::kF16 || operands == Operands::kScaledF16;
}
constexpr bool is_8_bit(Operands operands) {
  return operands == Operands::kF8E4M3 || operands == Operands::kScaledF8E4M3 ||
         operands == Operands::kInt8;
}
// Whether sums of blocks of K are multiplied by scales of 16-bit operands.
constexpr bool has_scaled_sums(Operands operands) {
  return operands == Operands::kScaledBF16 || operands == Operands::kScaledF16;
}

// With kScaledBF16 and kScaledF16 a scale is shared by a multiple of this many elements of K.
inline constexpr int kScaleStep = quant::kDecodedStep;

// Says what becomes of the sums.  Activated results have N / 2 columns, see GroupedGemm::activates.
enum class Result : uint8_t { kF32, kBF16, kF16, kActivatedBF16, kActivatedF8E4M3 };

struct Args {
  // These two are unset with a_rows.
  CUtensorMap a;        // [rows, K], boxes of kBoxRowsA x kBlockBytes
  CUtensorMap a_tiles;  // the same, boxes of kTileRows x kBlockBytes
  // [G N / 32, j, l, i, K] in the letters above, boxes of [kBoxRowsB / 32, 4, 4, 2, kBlockBytes].
  CUtensorMap b;
  CUtensorMap b_narrow;  // the same, boxes of half as many columns
  // Row r is row a_rows[r] of a and a_scale; nullptr: row r.
  const int32_t* a_rows;
  const void* a_values;  // the memory of a, which its maps describe
  const float* a_scale;  // nullptr: none
  const float* b_scale;
  int scale_block;  // has_scaled_sums(): b_scale is [G, ceil(K / scale_block), N]
  // But for kScaledF8E4M3, row r of group g has scale a_scale[r a_row_step + g a_group_step].
  int a_row_step;
  int a_group_step;
  const void* column_scale;  // nullptr: none
  DType column_dtype;        // f32; with kF8E4M3 and kInt8 also bf16 or f16
  int column_step;           // 1: [G, N]; 0: [G]
  const float* bias;         // nullptr: none
  void* out;
  // kActivatedF8E4M3: [rows of out, N / 256].  But with kF8E4M3 the codes of group g have scale
  // out_scale[g out_scale_step], which is given.
  float* out_scale;
  int out_scale_step;
  bool power_of_two_scale;  // of out_scale, see QuantizeSpec
  const int32_t* offsets;   // either these or counts; the others are nullptr
  const int32_t* counts;
  FetchAhead fetch;      // see GroupedGemm
  bool evicts_b;         // the same
  bool settled_groups;   // the same
  bool lets_next_begin;  // see core/cuda/launch.cuh
  int* next_item;        // nullptr, or two zeros; the kernel leaves zeros
  // With a_rows, rows of a may come in waves.  Group g has those of expert first_expert + g.
  RowArrivals::Signals arrivals;
  int first_expert;
  int max_rows;  // per group, with counts
  int num_rows;  // of out
  int num_groups;
  int n;
  int k;
  int first_column;  // the first column to compute, a multiple of kBoxRowsB
  int end_column;
  // nullptr: b is there.  Else the kernel decodes it (decoder.cuh), but for the first group that
  // has rows.  Zeros [2 + 2 G]: units that are claimed; of each group those that are decoded, and
  // the tiles of either CTA that are multiplied; and items that are drawn, instead of next_item.
  int* decode_counters;
  DecodeArgs decode;
  int slots;  // groups for which b has room, two at least
  // Whole tiles are stored in bulk; stores_in_bulk() says where that pays.
  bool in_bulk;
  // It is set with in_bulk: [N / 32, rows, 32], boxes of [kTileColumns / 32, kStoreRows, 32].
  CUtensorMap out_boxes;
};

// Whether there is a kernel for these operands and result.
constexpr bool can_launch(Operands operands, Result result) {
  switch (result) {
    case Result::kBF16:
      return !is_f16(operands);
    case Result::kActivatedBF16:
      return operands == Operands::kBF16 || operands == Operands::kScaledBF16 ||
             operands == Operands::kF8E4M3;
    case Result::kActivatedF8E4M3:
      return operands == Operands::kScaledF8E4M3 || operands == Operands::kF8E4M3;
    default:
      return true;
  }
}

// Whether whole tiles are stored in bulk (bulk_store.cuh).  That takes a stage's place.  So 16-bit
// operands, whose tiles take twice as long, lose more than they gain, and so do groups with few
// whole tiles.
constexpr bool stores_in_bulk(Operands operands, Result result, int64_t num_rows, int64_t groups) {
  return is_8_bit(operands) && (result == Result::kBF16 || result == Result::kF16) &&
         num_rows >= groups * 2 * kTileRows;
}

// Launches on the current device, which is `index`, on at most num_sms SMs, but no fewer than two.
// REQUIRES: can_launch(); if activated, N is a multiple of 256; if it decodes, operands are bf16,
// and so is the result.
void launch(const Args& args,
            Operands operands,
            Result result,
            int num_sms,
            int index,
            cudaStream_t stream);

}  // namespace moebius::cuda::sm90
