// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// This header says what few_rows_gemm.cu knows of the kernels that it launches.
#pragma once

#include <cstdint>
#include <type_traits>

#include "experts/cuda/activation/activation.cuh"
#include "experts/cuda/gemm/dequant/few_rows_stages.cuh"
#include "moebius/dtype.h"
#include "moebius/quantize.h"

namespace moebius::cuda::few_rows {

// The arguments of the kernel ahead of the GEMM.
struct OrderArgs {
  ActivationArgs x;            // unless rows are activated, `in` has rows of K
  const int32_t* index;        // row r is in[index[r]]; nullptr: in[r]
  const int32_t* row_of_slot;  // [num_tokens, topk], see RowOperand; nullptr: go by the index
  int num_tokens;
  int topk;
  int padded;      // the width of rows of `out`, a multiple of the k of a step
  bool is_packed;  // see WeightArgs
  // For kernels that take whole rows:
  int row_warps;  // that share a row, a power of two
  float* units;   // [rows of out], see Args::row_units
  // Those of Args::sums: of so many pieces of eight elements each, a power of two, times
  // sum_factor.
  float* sums;
  int64_t sum_rows;
  int sum_pieces;
  float sum_factor;
  const float* global;  // nvfp4's global scale, [1] or [G]; nullptr: each row has its own
  bool is_global_per_group;
};
inline constexpr int kOrderWarps = 8;
inline constexpr int kOrderThreads = kOrderWarps * kWarp;
inline constexpr int kHeldParts = 2;  // of a row, that a warp holds in kernels that take whole rows
// A warp takes so many pieces of eight elements at a time, which are slabs for its lanes.
inline constexpr int kOrderPieces = kWarp * kSlab / kEight;
// Returns the number of parts in which warps take a row.
__host__ __device__ constexpr uint32_t order_parts(int padded) {
  return (static_cast<uint32_t>(padded / kEight) + kOrderPieces - 1) / kOrderPieces;
}

// Calls find() with Activates as a constant, and returns what that does.
template <typename Find>
auto find_by_activation(Activates activates, const Find& find) {
  switch (activates) {
    case Activates::kNo:
      return find(std::integral_constant<Activates, Activates::kNo>{});
    case Activates::kPlainSilu:
      return find(std::integral_constant<Activates, Activates::kPlainSilu>{});
    default:
      return find(std::integral_constant<Activates, Activates::kAny>{});
  }
}

struct KernelChoice {
  Code code;
  DType scale;
  int tile_rows;
  uint32_t ends;  // see Args
  Activates activates;
  bool folds_int4;  // see GemmPlan
};
using GemmKernel = void (*)(Args);
using OrderKernel = void (*)(OrderArgs);
struct Kernels {
  GemmKernel gemm;          // with one block on an SM
  GemmKernel gemm_of_pair;  // with two; nullptr: it would keep registers in memory
  OrderKernel order;
  bool orders_whole_rows = false;
  bool makes_halves = false;  // rows are multiplied by norms, in f16
  int chunk_bytes = 0;        // of a column's scales, see few_rows_scales.cuh
  bool reads_slots = false;   // lanes read scales from slots only
};

// The kernels for rows in bf16 and in f16 and for codes but int4.  All are nullptr where the codes
// or scales have none.
Kernels bf16_kernels(const KernelChoice& choice);
Kernels f16_kernels(const KernelChoice& choice);
// Returns the kernels for rows in bf16 and packed codes of e2m1.
Kernels packed_kernels(const KernelChoice& choice);
// Returns the kernels for int4.  `rows`: bf16 or f16.
Kernels int4_kernels(const KernelChoice& choice, DType rows);
// Returns the kernel that quantizes rows in bf16 or f16 to the format of the weights as it orders
// them, where GemmPlan::takes_uncoded().
OrderKernel coding_kernel(QuantFormat format, Activates activates, DType rows);

}  // namespace moebius::cuda::few_rows
