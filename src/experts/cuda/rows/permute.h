// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The order of moebius/permute.h on a GPU.  Nothing waits for the device.
// REQUIRES: the arguments have been validated.
#pragma once

#include <cstdint>

#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius {

struct CudaOrderArgs {
  Tensor ids;                     // i32 or i64 [M, K]
  Tensor expert_map = {};         // i32 [E] or undefined
  int64_t first_expert = 0;       // without a map: local expert = id - first_expert
  int64_t num_local_experts = 1;  // L
  // 0: the rows of an expert follow those of the expert before.  Else rows have the batched layout,
  // row = e
  // * max_rows + index among e's rows, and slots without room count as masked.
  int64_t max_rows = 0;
  // Outputs, each optional; see Permutation.  Those indexed by row need max_rows 0.
  Tensor expert_offsets = {};
  Tensor slot_of_row = {};
  Tensor token_of_row = {};  // i32 [M * K]: slot_of_row / K
  Tensor row_of_slot = {};
  Tensor expert_counts = {};  // i32 [L]: how many slots each expert has
  Tensor cleared = {};        // i32: becomes zeros, for counters of the kernels that follow
};

// Enqueues the sort.  Throws Unsupported for more than 1024 local experts, and in a build without
// CUDA.
void cuda_order_slots(const CudaOrderArgs& args, const Stream& stream);

struct CudaPermuteArgs {
  Tensor x;            // [M, H]
  Tensor row_of_slot;  // i32 or i64 [M, K]
  Tensor out;          // [N, H]: out[row_of_slot[m, k]] = x[m], where 0 <= row_of_slot[m, k] < N
  // Scales that move in the same way; optional.
  Tensor scale = {};      // [M, G]
  Tensor out_scale = {};  // [N, G]
};

void cuda_permute_rows(const CudaPermuteArgs& args, const Stream& stream);

}  // namespace moebius
