// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/plan/problems.h"

#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace moebius::plan {

Deployment small_deployment(int ranks, int ranks_per_node, int64_t tokens) {
  Deployment d;
  d.layer.name = "small";
  d.layer.routing = {.num_experts = 16, .topk = 4};
  d.layer.hidden = 256;
  d.layer.intermediate = 128;
  d.ranks = ranks;
  d.ranks_per_node = ranks_per_node;
  d.tokens = tokens;
  return d;
}

Deployment preset_deployment(const char* preset, const char* quant, int ranks) {
  Deployment d;
  d.layer = layer_of_preset(preset);
  d.formats = find_formats(quant, d.layer);
  d.ranks = ranks;
  d.ranks_per_node = 8;
  d.device = Device::cuda(0);
  return d;
}

std::vector<int32_t> random_ids(const RoutingFacts& facts, int64_t tokens, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> all(static_cast<size_t>(facts.num_experts));
  std::iota(all.begin(), all.end(), 0);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t k = 0; k < facts.topk; ++k) {
      std::uniform_int_distribution<size_t> pick(static_cast<size_t>(k), all.size() - 1);
      std::swap(all[static_cast<size_t>(k)], all[pick(random)]);
      ids.push_back(all[static_cast<size_t>(k)]);
    }
  }
  return ids;
}

Copies counted_copies(const Deployment& d, const std::vector<std::vector<int32_t>>& ids) {
  const Topology topology = d.topology();
  const int64_t topk = d.layer.routing.topk;
  std::vector<int> rank_of;
  std::vector<int> node_of;
  for (int64_t e = 0; e < d.layer.routing.num_experts; ++e) {
    int rank = 0;
    while (d.places_of(rank).end <= e) {
      ++rank;
    }
    rank_of.push_back(rank);
    node_of.push_back(topology.node_of(rank));
  }
  Copies copies;
  copies.num_sources = static_cast<int>(ids.size());
  copies.num_ranks = d.ranks;
  copies.num_nodes = topology.num_nodes();
  for (const auto& own : ids) {
    const auto tokens = static_cast<int64_t>(own.size()) / topk;
    const Route ranks = make_route({own.data(), 1}, tokens, topk, rank_of, 0, d.ranks);
    const Route nodes = make_route({own.data(), 1}, tokens, topk, node_of, 0, copies.num_nodes);
    copies.to_rank.insert(copies.to_rank.end(), ranks.copies.begin(), ranks.copies.end());
    copies.to_node.insert(copies.to_node.end(), nodes.copies.begin(), nodes.copies.end());
    std::vector<double> selections(static_cast<size_t>(d.ranks), 0.0);
    for (const int32_t id : own) {
      ++selections[static_cast<size_t>(rank_of[static_cast<size_t>(id)])];
    }
    copies.selections.insert(copies.selections.end(), selections.begin(), selections.end());
  }
  return copies;
}

}  // namespace moebius::plan
