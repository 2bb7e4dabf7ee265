// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/copies.h"

#include <algorithm>
#include <cmath>

namespace moebius::plan {

namespace {

// The share of every expert's rows that goes to ranks [begin, end).
std::vector<double> share_of(const Deployment& d, int begin, int end) {
  const int64_t num_experts = d.layer.routing.num_experts;
  const int64_t places = d.num_places();
  std::vector<double> share(static_cast<size_t>(num_experts), 0.0);
  const int64_t last = d.places_of(end - 1).end;
  for (int64_t place = d.places_of(begin).begin; place < last; ++place) {
    const int64_t expert = place % num_experts;
    const int64_t replicas = places / num_experts + (expert < places % num_experts ? 1 : 0);
    share[static_cast<size_t>(expert)] += 1.0 / static_cast<double>(replicas);
  }
  for (double& s : share) {
    s = std::min(s, 1.0);  // three thirds may add up to more
  }
  return share;
}

}  // namespace

int Copies::fullest() const {
  int best = 0;
  double most = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (const double rows = received_selections(rank); rows > most) {
      most = rows;
      best = rank;
    }
  }
  return best;
}

Copies expected_copies(const Deployment& d,
                       const RoutingModel& routing,
                       double tokens,
                       double num_sources) {
  const Topology topology = d.topology();
  Copies copies;
  copies.num_sources = num_sources > 0 ? num_sources : d.ranks;
  copies.num_ranks = d.ranks;
  copies.num_nodes = topology.num_nodes();
  std::vector<double> selected;
  for (int64_t e = 0; e < d.layer.routing.num_experts; ++e) {
    selected.push_back(routing.selected(e));
  }
  for (int rank = 0; rank < d.ranks; ++rank) {
    const std::vector<double> share = share_of(d, rank, rank + 1);
    double selections = 0;
    for (size_t e = 0; e < share.size(); ++e) {
      selections += share[e] * selected[e];
    }
    copies.to_rank.push_back(tokens * routing.reached(share));
    copies.selections.push_back(tokens * selections);
  }
  for (int node = 0; node < copies.num_nodes; ++node) {
    const auto n = static_cast<size_t>(node);
    copies.to_node.push_back(
        tokens * routing.reached(share_of(d, topology.node_begin[n], topology.node_begin[n + 1])));
  }
  return copies;
}

double expected_touched_experts(
    const Deployment& d, const RoutingModel& routing, int rank, double tokens, double num_sources) {
  const double all_tokens = tokens * (num_sources > 0 ? num_sources : d.ranks);
  double touched = 0;
  const std::vector<double> share = share_of(d, rank, rank + 1);
  for (size_t e = 0; e < share.size(); ++e) {
    if (share[e] > 0) {
      const double chance = share[e] * routing.selected(static_cast<int64_t>(e));
      touched += 1 - std::pow(1 - chance, all_tokens);
    }
  }
  return touched;
}

}  // namespace moebius::plan
