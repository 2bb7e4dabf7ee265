// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// This header says what few_rows_gemm.cu knows of the kernels that it launches.
#pragma once

#include <cstdint>

#include "experts/cuda/activation/activation.cuh"
#include "experts/cuda/gemm/dequant/few_rows_stages.cuh"
#include "moebius/dtype.h"

namespace moebius::cuda::few_rows {

// The arguments of the kernel ahead of the GEMM.
struct OrderArgs {
  ActivationArgs x;            // unless rows are activated, `in` has rows of K
  const int32_t* index;        // row r is in[index[r]]; nullptr: in[r]
  const int32_t* row_of_slot;  // [num_tokens, topk], see RowOperand; nullptr: go by the index
  int num_tokens;
  int topk;
  int padded;  // the width of rows of `out`, a multiple of the k of a step
};
inline constexpr int kOrderThreads = 256;

struct KernelChoice {
  Code code;
  bool is_packed;  // see WeightArgs
  DType scale;
  int tile_rows;
  Activates activates;
};
using GemmKernel = void (*)(Args);
using OrderKernel = void (*)(OrderArgs);
struct Kernels {
  GemmKernel gemm;          // with one block on an SM
  GemmKernel gemm_of_pair;  // with two; nullptr: it would keep registers in memory
  OrderKernel order;
};

// The kernels for rows in bf16 and in f16.  All are nullptr where the codes or scales have none.
Kernels bf16_kernels(const KernelChoice& choice);
Kernels f16_kernels(const KernelChoice& choice);
// Those of packed codes, for rows in bf16, but for the kernel that orders rows.
Kernels packed_kernels(const KernelChoice& choice);

}  // namespace moebius::cuda::few_rows
