// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A grouped GEMM for few rows per group, which runs at the speed at which codes are read.  On the
// tensor cores the weights, decoded in registers, are the operand of 64 or 16 rows, and the rows of
// activations are its columns.  Sums over k that share scales are scaled in f32 and added up in
// order, or multiplied by ratios of scales; scales of e2m1 go into the elements where these hold
// them exactly, and so do those of int4 in large tiles (folds_int4()).
//
// Grid: one persistent block per SM, or two where items are short.  An item is a tile of rows of a
// group times a block of columns.
// Block: sixteen warps multiply, and lie side by side along the columns.  If that gives too few
// items, they form two or four teams, which take turns along k and whose sums are added up in
// order.  One more warp finds items and requests stages.  In tiles of more than 16 rows four warps
// multiply together (wgmma); in smaller ones each does so for itself (mma), which needs no waits
// for products.  Tiles of more than 64 rows have twelve or eight warps, whose registers hold more
// sums; a warpgroup decodes while another multiplies.  The sums of all differ by their order along
// k, by the rounding of ratios, where scales change in large tiles, and by zero points that they
// begin with.
// k: a sum over k may take any order that both operands share.  So a lane decodes eight neighbours,
// and a kernel ahead of this one brings rows into that order.
// Stages: 1 KiB of codes for each warp that multiplies, 64 bytes of a column, and the rows that
// they meet.  They go on from item to item, so that reading never pauses.  Scales have a smaller
// ring of their own behind them.  Behind that each item has a slot for the units of its rows, and
// each stage one for sums of its rows (Args::sums).
#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <limits>
#include <memory>

#include "core/allocate.h"
#include "core/ceil_div.h"
#include "core/cuda/device.h"
#include "core/cuda/launch.cuh"
#include "experts/cuda/activation/activation.h"
#include "experts/cuda/gemm/dequant/few_rows_launch.cuh"
#include "experts/cuda/gemm/dequant/few_rows_stages.cuh"
#include "experts/cuda/gemm/dequant/scale_norms.h"
#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/gemm/tensor_map.h"
#include "moebius/device.h"

namespace moebius::cuda {

namespace few_rows {
namespace {

Kernels find_kernels(const ExpertGemm& gemm, const GemmPlan& plan, const Args& p) {
  const WeightArgs& w = p.w;
  const auto& activation = gemm.a.activation;
  const KernelChoice choice{w.code,
                            w.scale_dtype,
                            plan.tile_rows,
                            p.ends,
                            !activation                  ? Activates::kNo
                            : is_plain_silu(*activation) ? Activates::kPlainSilu
                                                         : Activates::kAny,
                            plan.folds_int4};
  const DType rows = gemm.a.codes ? DType::kBF16 : gemm.a.values.dtype();
  Kernels kernels = w.code == Code::kU4   ? int4_kernels(choice, rows)
                    : rows == DType::kF16 ? f16_kernels(choice)
                    : w.is_packed         ? packed_kernels(choice)
                                          : bf16_kernels(choice);
  if (gemm.a.codes) {
    kernels.orders_whole_rows = true;
    kernels.order = coding_kernel(gemm.a.codes->format, choice.activates, gemm.a.values.dtype());
  }
  return kernels;
}

// How blocks lie on the SMs.
struct Layout {
  int blocks = 1;  // per SM
  size_t shared_bytes = 0;
};

// Returns the elements of k in a step of a team.
int elements_of_step(const Args& p) {
  return kStepBytes * 8 / quant::code_bits(p.w.code);
}
// Returns the width of ordered rows, whole steps.
int padded_width(const Args& p) {
  return static_cast<int>(ceil_div(p.k, elements_of_step(p))) * elements_of_step(p);
}

// Whether TMA can read the scales.
bool can_bring_scales(const Args& p) {
  constexpr int kAlignment = 16;
  const WeightArgs& w = p.w;
  return w.scale_cols > 1 && w.scale_rows == p.n &&
         w.scale_cols * (bits(w.scale_dtype) / 8) % kAlignment == 0 &&
         reinterpret_cast<uintptr_t>(w.scale) % kAlignment == 0;
}

// Lays out teams and stages, for so many blocks per SM.
Layout lay_out(Args& p, const Block& block, const Kernels& kernels, int blocks, int team_shift) {
  constexpr int kSharedBytes = 222 << 10;   // of what follows
  constexpr int kHalfTheBytes = 107 << 10;  // of each of two blocks
  const int own_k = elements_of_step(p);
  const int k = own_k << team_shift;  // of all teams
  const int team_bytes = block.columns() * block.tile_rows * int{sizeof(float)};
  const int sum_bytes = team_bytes - (team_bytes >> team_shift);
  p.team_shift = team_shift;
  p.across = ceil_div(p.n, block.columns() >> team_shift);
  p.steps = (p.k + k - 1) / k;
  p.others_k = k - own_k;
  p.team_k = static_cast<uint32_t>(k);
  p.chunk_steps = p.steps;  // if one chunk has all
  if (p.w.scale_cols > 1 || kernels.reads_slots) {
    const int scale_size = bits(p.w.scale_dtype) / 8;
    const int chunk = kernels.chunk_bytes / scale_size * p.w.group_cols;  // in k
    p.chunk_steps = std::max(1, chunk / k);
    p.chunk_k = p.chunk_steps * k;
    p.scale_bytes = std::max(kernels.chunk_bytes, k / p.w.group_cols * scale_size);
    assert(!kernels.reads_slots || p.scale_bytes == kernels.chunk_bytes);
    p.scale_slot_bytes = (block.columns() >> team_shift) * p.scale_bytes;
  }
  p.stage_bytes = block.code_bytes() + block.tile_rows * k * int{sizeof(BFloat16)};
  const int all_units = kernels.makes_halves ? all_unit_bytes(block.tile_rows) : 0;
  if (has_row_sums(p.w.code, block.tile_rows)) {
    p.sums_of_stage = k >> p.sum_shift;
    p.sum_slot_bytes =
        aligned_slot(p.sums_of_stage * sums_of_box(block.tile_rows) * int{sizeof(float)});
  }
  const int bytes = (blocks == 1 ? kSharedBytes : kHalfTheBytes) - sum_bytes - all_units;
  const int all_of_stage = p.stage_bytes + p.sum_slot_bytes;
  p.num_stages = std::min(kMostStages, bytes / all_of_stage);
  p.brings_scales = can_bring_scales(p);
  const auto slots = [&] {
    // One more than the stages have, which the warps may still read.
    return p.brings_scales       ? (p.num_stages + p.chunk_steps - 1) / p.chunk_steps + 1
           : kernels.reads_slots ? kOwnScaleSlots << team_shift
                                 : 0;
  };
  while (p.num_stages * all_of_stage + slots() * p.scale_slot_bytes > bytes) {
    --p.num_stages;
  }
  p.scale_slots = slots();
  return {blocks, static_cast<size_t>(p.num_stages * all_of_stage +
                                      p.scale_slots * p.scale_slot_bytes + all_units + sum_bytes)};
}

// This lays out as many teams as have the fewest steps in the longest chain of items of an SM. More
// teams must save a third of them.  Why: DeepSeek-V3's GEMM2 of one token, which has 1.7 items of
// 256 columns for an SM and 6.8 of 64, took 32 us without teams and 39 us with four.
// Two blocks per SM are chosen where items are short and more than SMs: one multiplies while an
// item of the other ends and the next begins.
Layout choose_layout(const ExpertGemm& gemm, const Block& block, const Kernels& kernels, Args& p) {
  constexpr int kShortSteps = 16;
  const int64_t groups = gemm.rows.num_groups;
  const int64_t rows = gemm.expected_rows > 0 ? gemm.expected_rows : gemm.out.dim(0);
  const int64_t tiles = std::min(rows, groups) * ceil_div(ceil_div(rows, groups), block.tile_rows);
  const int64_t sms = num_sms(gemm.out.device().index);
  lay_out(p, block, kernels, 1, 0);
  const bool has_short_items = p.steps <= kShortSteps && tiles * p.across > sms;
  const int blocks = kernels.gemm_of_pair != nullptr && has_short_items ? 2 : 1;
  int best = 0;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int shift = 0; 1 << shift <= block.most_teams; ++shift) {
    lay_out(p, block, kernels, blocks, shift);
    const int64_t steps = ceil_div(tiles * p.across, blocks * sms) * p.steps;
    if (p.num_stages >= kFewestStages && steps <= least / 3 * 2) {
      best = shift;
      least = steps;
    }
  }
  return lay_out(p, block, kernels, blocks, best);
}

// Tokens that become so many rows each, on average, are read once, and not once for each row.
// With fewer parts of tokens for an SM, rows of their own give it more to do at once.
constexpr int64_t kLeastRowsOfToken = 2;
constexpr int64_t kLeastTokenParts = 4;

// Returns how many warps share a row of so many parts in kernels that take whole rows: one for each
// part, or for kHeldParts of them where there are enough rows for all SMs.
int warps_of_row(int64_t parts, int64_t rows, int64_t sms) {
  constexpr int64_t kEnoughBlocks = 8;  // for an SM
  const auto warps = [&](int64_t of_warp) {
    const auto wanted = std::bit_ceil(static_cast<uint64_t>(ceil_div(parts, of_warp)));
    return static_cast<int>(std::min<uint64_t>(wanted, kOrderWarps));
  };
  const int most = warps(1);
  return rows * most >= kEnoughBlocks * kOrderWarps * sms ? warps(kHeldParts) : most;
}

// Brings rows into the order of k in which codes are decoded, and describes them in p.x.  Returns
// their memory.
std::shared_ptr<void> order_rows(
    const ExpertGemm& gemm, const Block& block, const Kernels& kernels, Args& p, const Stream& on) {
  const int index = on.device().index;
  const int width = padded_width(p);
  const int64_t num_rows = gemm.out.dim(0);
  const int64_t expected_rows = gemm.expected_rows > 0 ? gemm.expected_rows : num_rows;
  const int64_t row_bytes = width * int64_t{sizeof(BFloat16)};
  const int64_t bytes_of_units = kernels.makes_halves ? ceil_div(num_rows, int64_t{kUnitsOfChunk}) *
                                                            kUnitsOfChunk * int64_t{sizeof(float)}
                                                      : 0;
  const int64_t sum_rows = ceil_div(num_rows + 1, int64_t{kUnitsOfChunk}) * kUnitsOfChunk;
  const int64_t num_sums = width >> p.sum_shift;
  const int64_t bytes_of_sums = has_row_sums(p.w.code, block.tile_rows)
                                    ? num_sums * 2 * sum_rows * int64_t{sizeof(float)}
                                    : 0;
  std::shared_ptr<void> x = allocate_on(num_rows * row_bytes + bytes_of_units + bytes_of_sums, on);
  OrderArgs order{};
  order.index = p.index;
  order.padded = width;
  order.is_packed = p.w.is_packed;
  order.x.rows = p.rows;
  order.x.in = p.a.values;
  order.x.out = x.get();
  order.x.width = p.k;
  order.x.in_width = static_cast<int>(gemm.a.values.dim(1));
  order.x.spec = gemm.a.activation.value_or(ActivationSpec{});
  const int64_t parts = order_parts(width);
  const Tensor& row_of_slot = gemm.a.row_of_slot;
  int64_t num_read = num_rows;  // rows of `in`
  RowGroups read = p.rows;
  if (row_of_slot && gemm.expected_rows >= kLeastRowsOfToken * row_of_slot.dim(0) &&
      row_of_slot.dim(0) * parts >= kLeastTokenParts * num_sms(index)) {
    order.row_of_slot = row_of_slot.data<int32_t>();
    order.num_tokens = static_cast<int>(row_of_slot.dim(0));
    order.topk = static_cast<int>(row_of_slot.dim(1));
    num_read = order.num_tokens;
    read = RowGroups::all(num_read);
  }
  dim3 grid = span_grid(read, num_read * parts, kOrderWarps, num_sms(index));
  if (kernels.orders_whole_rows) {
    order.row_warps = warps_of_row(parts, std::min(num_read, expected_rows), num_sms(index));
    grid = span_grid(read, num_read, kOrderWarps / order.row_warps, num_sms(index));
  }
  if (kernels.makes_halves) {
    order.units = reinterpret_cast<float*>(static_cast<std::byte*>(x.get()) + num_rows * row_bytes);
    constexpr int kBytes = kUnitsOfChunk * int{sizeof(float)};
    p.row_units = order.units;
    p.units =
        make_tensor_map(order.units, CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_SWIZZLE_NONE,
                        {{kBytes, 1, kBytes},
                         {ceil_div(num_rows, int64_t{kUnitsOfChunk}), kBytes,
                          unit_bytes(block.tile_rows) / kBytes}});
  }
  if (bytes_of_sums > 0) {
    assert(kernels.makes_halves);
    order.sums = order.units + bytes_of_units / int64_t{sizeof(float)};
    order.sum_rows = sum_rows;
    order.sum_pieces = (1 << p.sum_shift) / kEight;
    order.sum_factor =
        -kWholeInt4Factor * (p.w.zero_point != nullptr ? 1.0f : p.w.default_zero_point);
    p.sum_rows = static_cast<int>(sum_rows);
    p.sums =
        make_tensor_map(order.sums, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_SWIZZLE_NONE,
                        {{2 * sum_rows, 1, sums_of_box(block.tile_rows)},
                         {num_sums, 2 * sum_rows, p.sums_of_stage}});
  }
  if (gemm.a.codes && gemm.a.scales != RowScales::kNone) {
    order.global = gemm.a.scale.data<float>();
    order.is_global_per_group = gemm.a.scales == RowScales::kPerGroup;
  }
  launch_early("order_rows_kernel", kernels.order, grid, kOrderThreads, 0,
               as_stream(on.native_handle()), order);
  const int64_t tiles = row_bytes / kTileRowBytes;
  const int tiles_of_stage = elements_of_step(p) * int{sizeof(BFloat16)} / kTileRowBytes
                             << p.team_shift;
  CUtensorMap* map = p.x;
  for (int rows = fewest_multiplied(block.tile_rows); rows <= block.tile_rows;
       rows += block.rows_step) {
    *map++ = make_tensor_map(x.get(), CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_SWIZZLE_128B,
                             {{kTileRowBytes, 1, kTileRowBytes},
                              {num_rows, row_bytes, rows},
                              {tiles, kTileRowBytes, tiles_of_stage},
                              {1, row_bytes, 1},
                              {1, row_bytes, 1}});
  }
  return x;
}

}  // namespace
}  // namespace few_rows

void few_rows_gemm(const ExpertGemm& gemm, const GemmPlan& plan, const Stream& on) {
  using namespace few_rows;
  const int index = on.device().index;
  const DeviceGuard guard(index);
  Args p{};
  static_cast<GemmArgs&>(p) = gemm_args(gemm);
  p.index = gemm.a.index ? gemm.a.index.data<int32_t>() : nullptr;
  p.scale_shift = scale_shift(p.w);
  const int scale_bits = bits(p.w.scale_dtype);
  p.has_scale_words = p.w.scale_cols * scale_bits % 32 == 0 &&
                      reinterpret_cast<uintptr_t>(p.w.scale) % sizeof(uint32_t) == 0;
  const Block block = block_of(plan.tile_rows);
  if (p.w.scale_cols > 1 || has_row_sums(p.w.code, block.tile_rows)) {
    const int step = elements_of_step(p);
    const int group = p.w.scale_cols > 1 ? p.w.group_cols : step;
    p.scaled_k = std::max(std::min(group, step), kSlab);
    for (int k = 0; k < step; k += p.scaled_k) {
      p.ends |= 1u << k / kSlab;
    }
    p.sum_shift = std::countr_zero(static_cast<unsigned>(p.scaled_k));
  }
  const Tensor& codes = gemm.w->values;
  const int64_t columns = codes.dim(0) * codes.dim(1);
  std::shared_ptr<void> own_norms;
  if (plan.folds_int4) {
    Tensor norms = gemm.w->scale_norms;
    if (!norms) {
      own_norms = allocate_on(columns * int64_t{sizeof(float)}, on);
      norms =
          Tensor::borrow(own_norms.get(), {codes.dim(0), codes.dim(1)}, DType::kF32, on.device());
      put_scale_norms(*gemm.w, norms, on);
    }
    p.scale_norms = norms.data<float>();
  }
  const Kernels kernels = find_kernels(gemm, plan, p);
  assert(kernels.gemm != nullptr);
  const Layout layout = choose_layout(gemm, block, kernels, p);
  const int64_t blocks = blocks_of(gemm, layout.blocks, index);
  const int64_t tiles = most_tiles(gemm.rows, gemm.out.dim(0), plan.tile_rows);
  const int block_columns = block.columns() >> p.team_shift;
  p.codes =
      make_tensor_map(codes.raw(), CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_SWIZZLE_64B,
                      {{p.w.row_bytes, 1, kStepBytes}, {columns, p.w.row_bytes, block_columns}});
  if (p.brings_scales) {
    const int64_t scale_bytes = p.w.scale_cols * int64_t{bits(p.w.scale_dtype) / 8};
    p.scales =
        make_tensor_map(p.w.scale, CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_SWIZZLE_NONE,
                        {{scale_bytes, 1, p.scale_bytes}, {columns, scale_bytes, block_columns}});
  }
  const std::shared_ptr<void> x = order_rows(gemm, block, kernels, p, on);
  const auto grid = static_cast<unsigned>(std::min(blocks, tiles * p.across));
  const GemmKernel kernel = layout.blocks == 2 ? kernels.gemm_of_pair : kernels.gemm;
  allow_shared_bytes(index, reinterpret_cast<const void*>(kernel),
                     static_cast<int64_t>(layout.shared_bytes));
  launch_early("few_rows_gemm_kernel", kernel, grid, block.threads(), layout.shared_bytes,
               as_stream(on.native_handle()), p);
}

}  // namespace moebius::cuda
