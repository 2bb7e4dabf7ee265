// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Permute: copies token rows into rows sorted by local expert, for a grouped GEMM, and says where
// to find them again (weight_and_reduce.h sums them).
// Letters: M tokens, K top-k, E global experts, L local experts, R rows.  Slot = token * K + k.
// Thread-safety: free functions; calls with different outputs may run at the same time.  On a GPU
// all tensors are on the stream's device, the work is enqueued on the stream, and R stays on the
// device: nothing waits on the host.
#pragma once

#include <cstdint>

#include "moebius/api.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius MOEBIUS_API {

// Rows of local expert e are [expert_offsets[e], expert_offsets[e + 1]), sorted by (token, k).
struct Permutation {
  Tensor expert_offsets;  // i32 [L + 1]; the last is R <= M * K
  Tensor slot_of_row;     // i32 [M * K]; entries from R on are masked and foreign slots, in order
  Tensor row_of_slot;     // i32 [M, K]; -1: masked or foreign
};

// A Permutation with memory for M tokens, its content unset.
// Throws InvalidArgument for negative sizes, topk or num_local_experts below 1, and 2^31 slots or
// more.
Permutation allocate_permutation(int64_t num_tokens,
                                 int64_t topk,
                                 int64_t num_local_experts,
                                 Device device = {});

// Fills `out`, which comes from allocate_permutation, from topk_ids i32 or i64 [M, K] (-1 = masked)
// and expert_map i32 [E] (local index or -1; undefined: ids are local).  Throws InvalidArgument for
// shapes, dtypes and devices that do not fit, for 2^31 slots or more, and on the CPU for an id
// outside [-1, E), naming token, slot and id, and for a map entry outside [-1, L),
// naming the expert.  On a GPU such slots count as foreign.
// Throws Unsupported on a GPU for more than 1024 local experts.
void make_permutation(const Tensor& topk_ids,
                      const Tensor& expert_map,
                      const Permutation& out,
                      const Stream& stream);

// Sets out[r] = x[slot_of_row[r] / K] for r < R; rows from R on stay as they are.
// x [M, N] has any dtype whose rows are whole bytes; out [at least R, N] has the same.
// Throws InvalidArgument for shapes, dtypes and devices that do not fit, and on the CPU for an out
// with fewer than R rows.  On a GPU rows past out's end are not written.
void permute_rows(const Tensor& x,
                  const Permutation& permutation,
                  const Tensor& out,
                  const Stream& stream);

}  // namespace moebius
