// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A grouped GEMM for few rows per group, which runs at the speed at which codes are read.  On
// Hopper's tensor cores the weights, decoded in registers, are the operand of 64 rows, and the rows
// of activations are its columns.  Sums over k that share scales are scaled in f32 and added up in
// order; scales of e2m1 go into the elements, which hold them exactly.
//
// Grid: one persistent block per SM.  An item is a tile of up to 64 rows of a group times a block
// of columns.
// Block: four warpgroups lie side by side along the columns.  If that gives too few items, they
// form two teams, which take every other step along k.
// k: a sum over k may take any order that both operands share.  So a lane decodes eight neighbours
// (a slab of 32 is the eights of four lanes), and rows are brought into that order on their way
// from `raw` to `rows`, a pass of 256 at a time, one pass ahead.
// Codes: each warp has a ring of kStages steps of its 16 columns.  The ring goes on from item to
// item, so that reading never pauses; 96 KiB are under way.
#include <algorithm>
#include <bit>
#include <cassert>
#include <limits>

#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "experts/cuda/gemm/dequant/few_rows_worker.cuh"
#include "experts/cuda/gemm/expert_gemm.h"
#include "moebius/device.h"

namespace moebius::cuda {

namespace few_rows {
namespace {

template <Code kCode, typename Scale, int kRows>
__global__ void __launch_bounds__(kThreads, 1)
    few_rows_gemm_kernel(const __grid_constant__ Args p) {
  __shared__ TileStarts starts;
  extern __shared__ __align__(1024) uint8_t dynamic[];
  Shared& shared = *reinterpret_cast<Shared*>(dynamic);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&shared.raw_arrived, 1);
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async_shared();
  }
  find_tiles<kThreads>(p.rows, kRows, starts);
  Worker<kCode, Scale, kRows>(p, shared, starts).run();
}

using Kernel = void (*)(Args);

template <Code kCode, typename Scale>
Kernel kernel_of_rows(int rows) {
  return rows == 16   ? few_rows_gemm_kernel<kCode, Scale, 16>
         : rows == 32 ? few_rows_gemm_kernel<kCode, Scale, 32>
         : rows == 48 ? few_rows_gemm_kernel<kCode, Scale, 48>
                      : few_rows_gemm_kernel<kCode, Scale, 64>;
}

// Returns nullptr where there is no kernel.
Kernel find_kernel(Code code, DType scale, int rows) {
  switch (code) {
    case Code::kU4:
      return scale == DType::kF32    ? kernel_of_rows<Code::kU4, float>(rows)
             : scale == DType::kBF16 ? kernel_of_rows<Code::kU4, BFloat16>(rows)
                                     : kernel_of_rows<Code::kU4, Float16>(rows);
    case Code::kI8:
      return scale == DType::kF32 ? kernel_of_rows<Code::kI8, float>(rows) : nullptr;
    case Code::kE4M3:
      return scale == DType::kF32    ? kernel_of_rows<Code::kE4M3, float>(rows)
             : scale == DType::kE8M0 ? kernel_of_rows<Code::kE4M3, uint8_t>(rows)
                                     : nullptr;
    case Code::kE2M1:
      return scale == DType::kE8M0 ? kernel_of_rows<Code::kE2M1, uint8_t>(rows)
                                   : kernel_of_rows<Code::kE2M1, uint16_t>(rows);
    default:
      return nullptr;
  }
}

static_assert(few_rows_tile(1 << 20) == kMostRows);

}  // namespace
}  // namespace few_rows

void few_rows_gemm(const ExpertGemm& gemm, const GemmPlan& plan, const Stream& on) {
  using namespace few_rows;
  const int index = on.device().index;
  const DeviceGuard guard(index);
  Args p{};
  static_cast<GemmArgs&>(p) = gemm_args(gemm);
  p.passes = (p.k + kPass - 1) / kPass;
  constexpr int kWhole = 31;
  p.scale_shift = kWhole;
  p.scaled_mask = kScaledAtEnd;
  if (p.w.scale_cols > 1) {
    p.scale_shift = std::countr_zero(static_cast<unsigned>(p.w.group_cols));
    const int step = kStepBytes * 8 / quant::code_bits(p.w.code);
    p.scaled_mask = std::min(p.w.group_cols, step) / kSlab - 1;
  }
  const int64_t blocks = blocks_of(gemm, 1, index);
  const int64_t tiles = most_tiles(gemm.rows, gemm.out.dim(0), plan.tile_rows);
  const auto across = [&](int columns) { return (p.n + columns - 1) / columns; };
  const int64_t expected_rows = gemm.expected_rows > 0 ? gemm.expected_rows : gemm.out.dim(0);
  const int64_t expected_tiles =
      std::min(tiles, expected_rows / plan.tile_rows + gemm.rows.num_groups);
  p.team_shift = expected_tiles * across(kColumns) < num_sms(index) ? 1 : 0;
  p.across = across(kColumns >> p.team_shift);
  const auto grid = static_cast<unsigned>(std::min(blocks, tiles * p.across));
  const Kernel kernel = find_kernel(p.w.code, p.w.scale_dtype, plan.tile_rows);
  assert(kernel != nullptr);
  allow_shared_bytes(index, reinterpret_cast<const void*>(kernel), sizeof(Shared));
  kernel<<<grid, kThreads, sizeof(Shared), as_stream(on.native_handle())>>>(p);
  check_launch("few_rows_gemm_kernel");
}

}  // namespace moebius::cuda
