// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks of one tensor-parallel group hold the same tokens.  So that nothing is sent or computed
// twice each brings a slice of them to the layer, and the slices of the output are gathered again.
#pragma once

#include <cstdint>

#include "moebius/group.h"
#include "moebius/modular_kernel.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius {

struct TokenSlice {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  // These tokens' rows of a tensor of all; undefined stays undefined.
  Tensor of(const Tensor& rows) const { return rows ? rows.slice(begin, end) : rows; }
};
// Part `part` of `parts`; the first parts have one token more where it does not come out even.
TokenSlice token_slice(int64_t num_tokens, int parts, int part);

// The input of a call of these tokens alone.
KernelInput slice_tokens(const KernelInput& input, const TokenSlice& slice);

// The fewest tokens that a rank brings.  Collective.
int64_t agree_on_fewest(Group& group, int64_t num_tokens);

// rows [T, ...]: every rank of [first_rank, first_rank + num_ranks) has filled its slice;
// afterwards each has all of them.  Collective over the whole group.
void gather_slices(
    Group& group, const Tensor& rows, int first_rank, int num_ranks, const Stream& stream);

// out [T, H] = sum over all ranks of their partial [T, H], on every rank; f32 accumulation in order
// of rank, rounded once.  Collective.
void sum_over_ranks(Group& group, const Tensor& partial, const Tensor& out, const Stream& stream);

}  // namespace moebius
