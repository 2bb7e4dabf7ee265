// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Permute: token rows to rows sorted by local expert, for a grouped GEMM, and where to find them
// again (weight_and_reduce.h sums them).
// Letters: M tokens, K top-k, E global experts, L local experts, R rows.  Slot = token * K + k.
// Thread-safety: free functions; calls with different outputs may run at the same time.
// On a GPU everything is on one device and of the stream, and R stays there: nothing waits.
#pragma once

#include <cstdint>

#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius {

// Rows of local expert e are [expert_offsets[e], expert_offsets[e + 1]), by (token, k).
struct Permutation {
  Tensor expert_offsets;  // i32 [L + 1]; the last is R <= M * K
  Tensor slot_of_row;     // i32 [M * K]; from R on the masked and foreign slots, in order
  Tensor row_of_slot;     // i32 [M, K]; -1: masked or foreign
};

// Throws InvalidArgument, as make_permutation, for 2^31 slots or more.
Permutation allocate_permutation(int64_t num_tokens,
                                 int64_t topk,
                                 int64_t num_local_experts,
                                 Device device = {});

// topk_ids i32 [M, K], -1 = masked; expert_map i32 [E], local index or -1; undefined: ids are
// local.  out: from allocate_permutation.
// On the CPU throws InvalidArgument naming token, slot and id for an id outside [-1, E), and the
// expert for a map entry outside [-1, L).  On a GPU such slots count as foreign.
// Throws Unsupported on a GPU for more than 1024 local experts.
void make_permutation(const Tensor& topk_ids,
                      const Tensor& expert_map,
                      const Permutation& out,
                      const Stream& stream);

// out[r] = x[slot_of_row[r] / K] for r < R; rows from R on stay as they are.
// x [M, N] of any dtype whose rows are whole bytes, out [at least R, N].
// REQUIRES: on a GPU, out has room for R rows; those past its end are not written.
void permute_rows(const Tensor& x,
                  const Permutation& permutation,
                  const Tensor& out,
                  const Stream& stream);

}  // namespace moebius
