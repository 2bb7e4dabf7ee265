// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of few_rows_gemm.cu, and which of them decodes what.  Kernels of bf16, of f16, of
// packed codes and of int4 are instances of their own, in few_rows_bf16.cu, few_rows_f16.cu,
// few_rows_packed.cu and few_rows_int4.cu, since they take minutes to compile.
#pragma once

#include "core/cuda/ptx.cuh"
#include "experts/cuda/gemm/dequant/few_rows_filler.cuh"
#include "experts/cuda/gemm/dequant/few_rows_launch.cuh"
#include "experts/cuda/gemm/dequant/few_rows_order.cuh"
#include "experts/cuda/gemm/dequant/few_rows_store.cuh"
#include "experts/cuda/gemm/dequant/few_rows_worker.cuh"
#include "moebius/dtype.h"

namespace moebius::cuda::few_rows {

// D: a Decoding.
template <typename D, int kRows, int kBlocks = 1>
static __global__ void __launch_bounds__(block_of(kRows).threads(), kBlocks)
    few_rows_gemm_kernel(const __grid_constant__ Args p) {
  constexpr Block kBlock = block_of(kRows);
  constexpr int kWarps = kBlock.warps();
  __shared__ TileStarts starts;
  __shared__ Barriers barriers;
  __shared__ Place places[kMostPlaces];
  extern __shared__ __align__(1024) uint8_t stages[];
  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&p.codes);
    for (int stage = 0; stage < p.num_stages; ++stage) {
      ptx::mbarrier_init(&barriers.full[stage], 1);
      ptx::mbarrier_init(&barriers.empty[stage], kWarps);
    }
    for (int slot = 0; slot < p.scale_slots; ++slot) {
      ptx::mbarrier_init(&barriers.scales_full[slot], 1);
      ptx::mbarrier_init(&barriers.scales_empty[slot], kWarps);
    }
    ptx::fence_mbarrier_init();
    ptx::fence_proxy_async_shared();
  }
  // The kernel ahead orders rows.  It let this one begin after the sizes of groups were complete.
  constexpr bool kGivesRegisters = kRows > kMmaRows;
  find_tiles<kBlock.threads()>(p.rows, kRows, starts);
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / kWarp);
  if (warp >= kWarps) {
    if constexpr (kGivesRegisters) {
      ptx::fewer_registers<kBlock.filler_registers>();
    }
    if (warp == kWarps && ptx::elect_one()) {
      Filler<D::kCode, kRows> filler(p, starts, stages, barriers, places);
      filler.request_first_codes();
      ptx::await_kernel_before();
      filler.run();
    }
  } else {
    if constexpr (kGivesRegisters) {
      ptx::more_registers<kBlock.worker_registers>();
    }
    ptx::await_kernel_before();
    uint8_t* units = stages + p.num_stages * p.stage_bytes + p.scale_slots * p.scale_slot_bytes;
    auto* sums =
        reinterpret_cast<float*>(units + (p.row_units != nullptr ? all_unit_bytes(kRows) : 0) +
                                 p.num_stages * p.sum_slot_bytes);
    Worker<D, kRows>(p, stages, barriers, places, units, sums).run(num_items(p, starts));
  }
}

template <typename D, int kRows>
constexpr GemmKernel kernel_of_tiles() {
  if constexpr (D::has_tiles(kRows)) {
    return few_rows_gemm_kernel<D, kRows>;
  } else {
    return nullptr;
  }
}

// Returns the kernels but the one that orders rows.
template <typename D>
Kernels gemm_kernels_of(const KernelChoice& choice) {
  Kernels kernels{};
  const int rows = choice.tile_rows;
  kernels.chunk_bytes = chunk_bytes<D>(rows);
  kernels.reads_slots = D::kByChunks;
  kernels.gemm = rows == 16                   ? kernel_of_tiles<D, 16>()
                 : rows == 32                 ? kernel_of_tiles<D, 32>()
                 : rows == 48                 ? kernel_of_tiles<D, 48>()
                 : rows <= kSmallFewRowsTile  ? kernel_of_tiles<D, kSmallFewRowsTile>()
                 : rows == kMediumFewRowsTile ? kernel_of_tiles<D, kMediumFewRowsTile>()
                                              : kernel_of_tiles<D, kLargeFewRowsTile>();
  // Why no others: int4, and sums that are scaled, would keep some registers in memory.
  if constexpr (D::kCode == Code::kE2M1 && D::kFolds) {
    kernels.gemm_of_pair = rows <= kMmaRows ? few_rows_gemm_kernel<D, kMmaRows, 2> : nullptr;
  }
  return kernels;
}

template <typename D>
Kernels kernels_of(const KernelChoice& choice) {
  Kernels kernels = gemm_kernels_of<D>(choice);
  kernels.order = find_by_activation(choice.activates, [](auto activates) -> OrderKernel {
    return order_rows_kernel<D::kCode, D::kByChunks, typename D::Element, activates()>;
  });
  return kernels;
}

// Returns the kernels for codes with these scales.  Those for changes within steps take all scales;
// e8m0 that is not folded has no others.
template <Code kCode, typename Scale, typename T>
Kernels kernels_of(const KernelChoice& choice) {
  using Never = Decoding<kCode, Scale, T>;
  if constexpr (Never::kFolds) {
    return kernels_of<Never>(choice);
  } else {
    if constexpr (!Never::kIsE8m0) {
      if (choice.ends == 0) {
        return kernels_of<Never>(choice);
      }
      if (choice.ends == 1 && choice.tile_rows > kSmallFewRowsTile) {
        return kernels_of<Decoding<kCode, Scale, T, Changes::kBetweenSteps>>(choice);
      }
    }
    return kernels_of<Decoding<kCode, Scale, T, Changes::kWithinSteps>>(choice);
  }
}

// T: BFloat16 or Float16, the type of the rows.
template <typename T>
Kernels find_kernels(const KernelChoice& choice) {
  const DType scale = choice.scale;
  switch (choice.code) {
    case Code::kI8:
      return scale == DType::kF32 ? kernels_of<Code::kI8, float, T>(choice) : Kernels{};
    case Code::kE4M3:
      return scale == DType::kF32    ? kernels_of<Code::kE4M3, float, T>(choice)
             : scale == DType::kE8M0 ? kernels_of<Code::kE4M3, uint8_t, T>(choice)
                                     : Kernels{};
    case Code::kE2M1:
      return scale == DType::kE8M0 ? kernels_of<Code::kE2M1, uint8_t, T>(choice)
                                   : kernels_of<Code::kE2M1, uint16_t, T>(choice);
    default:
      return {};
  }
}

}  // namespace moebius::cuda::few_rows
