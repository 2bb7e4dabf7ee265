// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "moebius/group.h"
#include "moebius/profile.h"

namespace moebius {

int Topology::node_of(int of_rank) const {
  expect_ge(of_rank, 0, "rank");
  expect_le(of_rank, size - 1, "rank");
  const auto after = std::upper_bound(node_begin.begin(), node_begin.end(), of_rank);
  return static_cast<int>(after - node_begin.begin()) - 1;
}

int Topology::node_size(int node) const {
  expect_ge(node, 0, "node");
  expect_le(node, num_nodes() - 1, "node");
  const auto n = static_cast<size_t>(node);
  return node_begin[n + 1] - node_begin[n];
}

int Topology::local_rank() const {
  return rank - node_begin[static_cast<size_t>(node())];
}

Topology Topology::make(int rank, int size, int ranks_per_node) {
  expect_ge(size, 1, "number of ranks");
  expect_ge(rank, 0, "rank");
  expect_le(rank, size - 1, "rank");
  expect_ge(ranks_per_node, 0, "ranks per node");
  const int step = ranks_per_node == 0 ? size : ranks_per_node;
  Topology topology{rank, size, {}};
  for (int begin = 0; begin < size; begin += std::min(step, size - begin)) {
    topology.node_begin.push_back(begin);
  }
  topology.node_begin.push_back(size);
  return topology;
}

std::unique_ptr<Group> Group::split(int /*color*/, int /*key*/) {
  throw Unsupported(fmt::format("split: group {} cannot be split", name()));
}

int Group::original_rank(int of_rank) const {
  expect_ge(of_rank, 0, "rank");
  expect_le(of_rank, size() - 1, "rank");
  return original_ranks_.empty() ? of_rank : original_ranks_[static_cast<size_t>(of_rank)];
}

void Group::exchange_on(const Stream& stream,
                        std::string_view op,
                        std::span<const SendBlock>,
                        std::span<const RecvBlock>) {
  throw Unsupported(fmt::format("{} on {}: the ranks of group {} have no GPU", op,
                                to_string(stream.device()), name()));
}

void Window::signal(int rank, int64_t offset, int64_t value) {
  auto* word = reinterpret_cast<int64_t*>(peer(rank) + offset);
  std::atomic_ref(*word).store(value, std::memory_order_release);
}

void Group::count_traffic(int peer, int64_t bytes) {
  if (peer != rank()) {
    (topology_.same_node(peer) ? traffic_.intra_node_bytes : traffic_.inter_node_bytes) += bytes;
    traffic_.to_rank[static_cast<size_t>(peer)] += bytes;
    if (profile_ != nullptr) {
      profile_->add_bytes(bytes);
    }
  }
}

}  // namespace moebius
