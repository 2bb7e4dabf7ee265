// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The order of slots by local expert on a GPU, as moebius/permute.h and moebius/slot_order.h have
// it.  Nothing waits for the device.
// REQUIRES: the arguments have been validated.
#pragma once

#include <cstdint>

#include "core/forward.h"
#include "core/ids.h"
#include "moebius/slot_order.h"
#include "moebius/tensor.h"

namespace moebius {

struct CudaOrderArgs {
  Tensor ids;                     // i32 or i64 [M, K]
  Tensor expert_map = {};         // i32 [E] or undefined
  int64_t first_expert = 0;       // without a map: local expert = id - first_expert
  int64_t num_local_experts = 1;  // L
  // 0: the rows of an expert follow those of the expert before.  Else rows have the batched layout:
  // the row is max_rows * e + its index among e's rows, and slots without room count as masked.
  int64_t max_rows = 0;
  // Outputs, each optional; see Permutation.  Those indexed by row need max_rows 0.
  Tensor expert_offsets = {};
  Tensor slot_of_row = {};
  Tensor token_of_row = {};  // i32 [M * K]: slot_of_row / K
  Tensor row_of_slot = {};
  Tensor expert_counts = {};  // i32 [L]: how many slots each expert has
  Tensor cleared = {};        // i32: becomes zeros, for counters of the kernels that follow

  // Returns the arguments that make a SlotOrder of these ids.
  static CudaOrderArgs of(const Tensor& ids, const SlotOrder& order);
};

// Enqueues the sort.  Throws Unsupported for more than 1024 local experts, and in a build without
// CUDA.
void cuda_order_slots(const CudaOrderArgs& args, const Stream& stream);

// The same arguments as kernels take them (slot_order.cuh).
struct SlotSort {
  Ids ids;
  int64_t num_slots;
  int topk;
  const int32_t* map;  // nullptr: none
  int64_t num_ids;     // entries of the map
  int64_t first_expert;
  int num_buckets;  // L + 1; the last bucket is for masked and foreign slots
  int num_chunks;
  int warp_slots;  // that a warp takes of a chunk
  int64_t max_rows;
  int32_t* chunk_counts;  // [num_chunks, num_buckets]; nullptr with one chunk
  int32_t* expert_offsets;
  int32_t* expert_counts;
  int32_t* slot_of_row;
  int32_t* token_of_row;
  int32_t* row_of_slot;
  int32_t* cleared;  // [num_cleared]
  int num_cleared;

  // The dynamic shared memory of a CTA that places slots.
  int64_t shared_bytes() const;
};
// Throws as cuda_order_slots() does.
SlotSort slot_sort(const CudaOrderArgs& args);

}  // namespace moebius
