// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/routing/route.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/same_device.h"

namespace moebius {

Route make_route(Ids ids,
                 int64_t num_tokens,
                 int64_t topk,
                 std::span<const int> destination_of,
                 int first,
                 int num_destinations) {
  Route route;
  route.num_tokens = num_tokens;
  route.first = first;
  route.num_destinations = num_destinations;
  route.index.assign(static_cast<size_t>(num_tokens * num_destinations), -1);
  route.copies.assign(static_cast<size_t>(num_destinations), 0);
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t k = 0; k < topk; ++k) {
      const int32_t id = ids[t * topk + k];
      const int d = id < 0 ? -1 : destination_of[static_cast<size_t>(id)] - first;
      if (d < 0 || d >= num_destinations) {
        continue;
      }
      ++route.selections;
      int32_t& index = route.index[static_cast<size_t>(t * num_destinations + d)];
      if (index < 0) {  // the first of this token's experts at d makes the copy
        index = static_cast<int32_t>(route.copies[static_cast<size_t>(d)]++);
      }
    }
  }
  return route;
}

Route make_route(const bool* is_token_in_rank,
                 int64_t num_tokens,
                 int num_ranks,
                 std::span<const int> rank_begin,
                 int first) {
  Route route;
  route.num_tokens = num_tokens;
  route.first = first;
  route.num_destinations = static_cast<int>(rank_begin.size()) - 1;
  route.index.assign(static_cast<size_t>(num_tokens * route.num_destinations), -1);
  route.copies.assign(static_cast<size_t>(route.num_destinations), 0);
  int32_t* index = route.index.data();
  for (int64_t t = 0; t < num_tokens; ++t) {
    const bool* is_in = is_token_in_rank + t * num_ranks;
    for (size_t d = 0; d + 1 < rank_begin.size(); ++d, ++index) {
      if (std::find(is_in + rank_begin[d], is_in + rank_begin[d + 1], true) !=
          is_in + rank_begin[d + 1]) {
        *index = static_cast<int32_t>(route.copies[d]++);
      }
    }
  }
  return route;
}

void expect_ids(const Tensor& topk_ids, int64_t num_experts) {
  expect_id_dtype(topk_ids, "topk_ids");
  expect_eq(topk_ids.num_dims(), 2, "dimensions of topk_ids");
  expect_on(topk_ids, Device::cpu(), "topk_ids");
  const int64_t topk = topk_ids.dim(1);
  const Ids ids = Ids::of(topk_ids);
  const int64_t num_ids = topk_ids.numel();
  for (int64_t i = 0; i < num_ids; ++i) {
    if (ids[i] < -1 || ids[i] >= num_experts) {
      throw_bad_id(i, topk, ids.value(i), num_experts);
    }
  }
}

void throw_bad_id(int64_t index, int64_t topk, int64_t id, int64_t num_experts) {
  throw InvalidArgument(fmt::format("topk_ids of token {}, slot {} is {}, expected -1 to {}",
                                    index / topk, index % topk, id, num_experts - 1));
}

int gateway(const Topology& topology, int source, int node) {
  const int source_node = topology.node_of(source);
  const int local = source - topology.node_begin[static_cast<size_t>(source_node)];
  return topology.node_begin[static_cast<size_t>(node)] + local % topology.node_size(node);
}

int64_t CountMatrix::row_begin(int source, int destination) const {
  int64_t row = 0;
  for (int s = 0; s < source; ++s) {
    row += sent(s, destination);
  }
  return row;
}

std::vector<int32_t> CountMatrix::rank_prefix() const {
  std::vector<int32_t> prefix(static_cast<size_t>(num_ranks * num_ranks));
  for (int d = 0; d < num_ranks; ++d) {
    int64_t rows = 0;
    for (int s = 0; s < num_ranks; ++s) {
      rows += sent(s, d);
      prefix[static_cast<size_t>(s * num_ranks + d)] = static_cast<int32_t>(rows);
    }
  }
  return prefix;
}

int64_t CountMatrix::most_rows() const {
  int64_t most = 0;
  for (int r = 0; r < num_ranks; ++r) {
    most = std::max(most, rows(r));
  }
  return most;
}

}  // namespace moebius
