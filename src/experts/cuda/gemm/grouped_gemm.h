// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Grouped GEMM on a GPU: out[r, n] = sum over k of a[r, k] * b[g, n, k] for every row r of group g.
// Letters: G groups (local experts), M rows of `a` (there is room for M; not all need be in use),
// N, K. Group sizes stay on the device.  Nothing waits on the host, and a CUDA graph can capture
// all of it.
#pragma once

#include "core/cuda/fetch_ahead.h"
#include "experts/cuda/gemm/tensor_map.h"
#include "moebius/row_arrivals.h"
#include "moebius/stream.h"
#include "moebius/support.h"
#include "moebius/tensor.h"

namespace moebius::cuda {

struct DecodeArgs;

struct GroupedGemm {
  Tensor a;  // [M, K], sorted by group; or batched [G, max_rows, K]: bf16, f16, f8e4m3, int8
  // i32 [M], optional, only with group_offsets: row r is a[a_rows[r]], with a_scale[a_rows[r]]
  // where scales are per row; both then have any number of rows.  All M entries name rows of a,
  // even those of no group.
  Tensor a_rows;
  // With a_rows, rows of a may still be on their way.  Group g waits for those of expert
  // first_expert + g.
  RowArrivals::Signals arrivals;
  int64_t first_expert = 0;
  // f32.  For f8e4m3 with b_scale [M, ceil(K / 128)] or [G, max_rows, ceil(K / 128)].  Otherwise
  // [M, 1] or [G, max_rows, 1], one per group [G, 1, 1], or one for all [1, 1]; optional for
  // bf16 and f16.
  Tensor a_scale;
  Tensor b;  // [G, N, K] of a's dtype
  // column_maps(b), by the lines that evicts_b wants, where they exist already.
  const ColumnMaps* b_maps = nullptr;
  // f32, optional.  For f8e4m3 [G, ceil(N / 128), ceil(K / 128)], for bf16 and f16 [G, ceil(K /
  // block), N]: sums of a block are multiplied by it and added up in f32.
  Tensor b_scale;
  int64_t scale_block = 0;  // the block of b_scale of bf16 and f16, a multiple of 32
  // f32 [G, N] or [G, 1]: sums are multiplied by it before rounding.  int8 has it, and f8e4m3
  // without b_scale; theirs may be in bf16 or f16, too.
  Tensor column_scale;
  Tensor bias;  // f32 [G, N], added after that; optional
  // Exactly one of these two is given, i32.
  Tensor group_offsets;  // [G + 1]: group g has rows [offsets[g], offsets[g + 1]) of out
  Tensor group_counts;   // [G]: group g has rows [0, counts[g]) of a[g]
  // [M, N] or [G, max_rows, N]; rows of no group stay as they are.  f32, f16 or, unless a is
  // f16, bf16.
  Tensor out;
  // Columns [0, N / 2) are gate and the others up, each rounded to bf16.  out [.., N / 2] is their
  // activation, silu(gate) times up, as activate() computes it.  It is bf16, or f8e4m3 for f8e4m3
  // operands: with b_scale quantized in groups of 128 as QuantizeSpec says, with scales f32 [..,
  // N / 256], and without by scales that are given, f32 [G] or [1].  N is a multiple of 256.
  bool activates = false;
  Tensor out_scale;
  bool power_of_two_scale = false;  // see QuantizeSpec, for out_scale
  // Only columns [first_column, first_column + num_columns) of N are computed, which are whole
  // blocks of 128 (num_columns 0: all).  out has the other columns, too.  Not where it activates.
  int64_t first_column = 0;
  int64_t num_columns = 0;
  // group_offsets or group_counts are complete before this kernel begins, see RowGroups::settled.
  bool settled_groups = false;
  FetchAhead fetch = {};  // the kernel fetches it while it waits for the sizes of groups
  bool evicts_b = false;  // see GemmPlan::evicts_weights
  int num_sms = 0;        // the most blocks, one per SM (two at least); 0: all
  // i32 [2], optional: balances groups of uneven size.  It must be zeros before the first call, and
  // each call leaves zeros; calls that may overlap need one each.
  Tensor next_item;
  // Set: the kernel decodes b, column_scale and b_scale itself, ahead of the tiles that need them.
  // b [S, N, K] then has room for S groups, two at least, and `decode_counters` are zeros.  Only
  // for bf16, as GemmPlan::decodes_ahead says.  What the first group with rows needs is there
  // already.
  const DecodeArgs* decode = nullptr;
  Tensor decode_counters;  // i32 [num_decode_counters(G)]
};

// The GEMM on Hopper's tensor cores through TMA and wgmma: bf16, f16, f8e4m3, whose sums of 128
// are added up in f32, and int8, whose sums are exact.  N and K are multiples of 64.
Support sm90_grouped_gemm_supports(const GroupedGemm& gemm);
ColumnMaps column_maps(const Tensor& b, Lines lines);
void sm90_grouped_gemm(const GroupedGemm& gemm, const Stream& stream);

}  // namespace moebius::cuda
