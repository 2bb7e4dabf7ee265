// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Slices of tokens.  Ranks of one tensor-parallel group hold the same tokens.  So that nothing is
// sent or computed twice, each brings a slice of them to the layer, and the slices of the output
// are gathered at the end.  Micro-batches are slices, too.
#pragma once

#include <cstdint>
#include <string_view>

#include "moebius/group.h"
#include "moebius/modular_kernel.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius {

struct TokenSlice {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  // The rows of these tokens in a tensor of all tokens.  An undefined tensor stays undefined.
  Tensor of(const Tensor& rows) const { return rows ? rows.slice(begin, end) : rows; }
};
// Part `part` of `parts`.  If tokens do not divide evenly, the first parts have one more.
TokenSlice token_slice(int64_t num_tokens, int parts, int part);

// The input of a call for these tokens alone.
KernelInput slice_tokens(const KernelInput& input, const TokenSlice& slice);

// The smallest number of tokens that any rank brings.  Collective.
int64_t agree_on_fewest(Group& group, int64_t num_tokens);

// Tells the other ranks of the group, if there are any, that this one gives a call up, and why.
void tell_others(Group& group, std::string_view why) noexcept;

// rows [T, ...]: before the call every rank of [first_rank, first_rank + num_ranks) has filled its
// slice, and afterwards each of them has all slices.  Collective over the whole group.
void gather_slices(
    Group& group, const Tensor& rows, int first_rank, int num_ranks, const Stream& stream);

// out [T, H] = the sum of partial [T, H] over all ranks, on every rank.  It is accumulated in f32
// in order of rank and rounded once.  Collective.
void sum_over_ranks(Group& group, const Tensor& partial, const Tensor& out, const Stream& stream);

}  // namespace moebius
