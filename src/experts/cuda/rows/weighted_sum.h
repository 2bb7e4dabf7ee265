// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Weighted sums of rows on a GPU: the sums of core/row_sums.h, for all tokens at once.
#pragma once

#include <cstdint>

#include "core/forward.h"
#include "moebius/tensor.h"

namespace moebius {

// The most terms of a token, which a warp keeps in shared memory.
inline constexpr int64_t kMaxSumTerms = 3072;

struct CudaSumArgs {
  Tensor rows;              // [.., H] f32, bf16 or f16
  Tensor row_of_slot = {};  // i32 [T, K], -1 = no row; undefined: row t * K + k
  Tensor ids = {};          // i32 or i64 [T, K] or undefined; -1 = no row
  Tensor weights = {};      // f32 [T, K]; undefined: all 1
  bool by_row = false;      // terms in the order of their rows instead of their slots
  bool sums_in_type = false;
  // row_of_slot, ids and weights were complete before the kernel ahead in the stream began.
  bool settled_terms = false;
  int64_t topk = 1;
  Tensor output;  // [T, W]: columns [first_column, first_column + W) of rows
  int64_t first_column = 0;
};

// Enqueues the sums; nothing waits for the device.  Throws Unsupported without CUDA, and for topk
// above kMaxSumTerms.  REQUIRES: the arguments have been validated.
void cuda_weighted_sum(const CudaSumArgs& args, const Stream& stream);

// The same for rows [L, max_rows, H], which hold local experts ids - first_expert in (token, k)
// order.
void cuda_batched_sum(const CudaSumArgs& args, int64_t first_expert, const Stream& stream);

}  // namespace moebius
