// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Route: which copies some tokens make, and the place of each among its source's copies.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "moebius/dispatch.h"
#include "moebius/group.h"
#include "moebius/tensor.h"

namespace moebius {

// The copies of `num_tokens` tokens to the destinations [first, first + num_destinations), which
// are ranks or nodes.
struct Route {
  int64_t num_tokens = 0;
  int first = 0;
  int num_destinations = 0;
  int64_t selections = 0;       // of experts at these destinations
  std::vector<int32_t> index;   // [num_tokens, num_destinations] place among the copies, -1 = none
  std::vector<int64_t> copies;  // [num_destinations]

  int32_t at(int64_t token, int destination) const {
    return index[static_cast<size_t>(token * num_destinations + (destination - first))];
  }
  // Calls fn(destination, place) for each copy of the token.
  template <typename Fn>
  void for_each_copy(int64_t token, const Fn& fn) const {
    for (int destination = first; destination < first + num_destinations; ++destination) {
      if (const int32_t place = at(token, destination); place >= 0) {
        fn(destination, place);
      }
    }
  }
};

// ids: [num_tokens, topk], already checked.  destination_of[e]: the rank or node of expert e.
Route make_route(Ids ids,
                 int64_t num_tokens,
                 int64_t topk,
                 std::span<const int> destination_of,
                 int first,
                 int num_destinations);

// The same where the caller has found the ranks of each token.  is_token_in_rank is
// [num_tokens, num_ranks]; destination first + d has the ranks [rank_begin[d], rank_begin[d + 1]).
// It does not count selections.
Route make_route(const bool* is_token_in_rank,
                 int64_t num_tokens,
                 int num_ranks,
                 std::span<const int> rank_begin,
                 int first);

// Throws InvalidArgument unless the ids are i32 or i64 [T, K] on the CPU, each in [-1,
// num_experts).  The message names the token and the slot.
void expect_ids(const Tensor& topk_ids, int64_t num_experts);
// Throws the error about an id that is out of range, which is at `index` of [T, K].
[[noreturn]] void throw_bad_id(int64_t index, int64_t topk, int64_t id, int64_t num_experts);

// The rank of `node` that receives for its node what `source`, of another node, sends: the one with
// the same index within its node, modulo the node's size.
int gateway(const Topology& topology, int source, int node);

// What every rank knows after the exchange of notices: how many copies go from each rank to each,
// and how many tokens of each rank have a copy on each node.
struct CountMatrix {
  int num_ranks = 0;
  int num_nodes = 0;
  std::vector<int64_t> copies;       // [R, R]
  std::vector<int64_t> node_copies;  // [R, num_nodes]

  int64_t sent(int source, int destination) const {
    return copies[static_cast<size_t>(source * num_ranks + destination)];
  }
  int64_t sent_to_node(int source, int node) const {
    return node_copies[static_cast<size_t>(source * num_nodes + node)];
  }
  // First row of `source`'s copies among those received by `destination`.
  int64_t row_begin(int source, int destination) const;
  int64_t rows(int destination) const { return row_begin(num_ranks, destination); }
  int64_t most_rows() const;  // the largest rows() of all destinations
  // [R, R]: the copies to each destination from a source and those before it.
  std::vector<int32_t> rank_prefix() const;
};

}  // namespace moebius
