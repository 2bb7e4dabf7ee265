// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The arguments of kernels that decode weights to bf16 or f16.
#pragma once

#include <cstdint>

#include "experts/cuda/gemm/weight_values.h"

namespace moebius::cuda {

struct DecodeArgs {
  WeightArgs w;
  RowArgs a;
  bool folds;              // block scales go into the elements, else column_scale or block_scale
  int num_blocks;          // rows of block_scale
  uint32_t block_inverse;  // 2^32 / vectors of a block, rounded up
  int block_shift;         // log2 of the vectors of a block, where that is a power of two
  // These three point to what the first group or slot has.
  void* out;  // bf16 or f16
  float* column_scale;
  float* block_scale;
  int n;
  int k;
};

}  // namespace moebius::cuda
