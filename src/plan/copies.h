// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Copies: how many rows go from which rank to which rank and node, expected or counted.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/deployment.h"

namespace moebius::plan {

// Each matrix is [sources, destinations], own rank and node included.  One source stands for all
// where they are alike.
struct Copies {
  std::vector<double> to_rank;     // tokens with at least one selection there
  std::vector<double> to_node;     // the same by node
  std::vector<double> selections;  // (token, expert) pairs
  double num_sources = 1;          // see Deployment
  int num_ranks = 1;
  int num_nodes = 1;

  double rank_copies(int source, int rank) const { return at(to_rank, source, rank, num_ranks); }
  double node_copies(int source, int node) const { return at(to_node, source, node, num_nodes); }
  double rank_selections(int source, int rank) const {
    return at(selections, source, rank, num_ranks);
  }
  // What a rank receives, its own rows included.
  double received(int rank) const { return received(to_rank, rank); }
  double received_selections(int rank) const { return received(selections, rank); }
  // The first of the ranks that compute most rows.
  int fullest() const;

 private:
  static double at(const std::vector<double>& matrix, int source, int to, int width) {
    const size_t row =
        matrix.size() == static_cast<size_t>(width) ? 0 : static_cast<size_t>(source);
    return matrix[row * static_cast<size_t>(width) + static_cast<size_t>(to)];
  }
  double received(const std::vector<double>& matrix, int rank) const {
    if (matrix.size() == static_cast<size_t>(num_ranks)) {
      return num_sources * at(matrix, 0, rank, num_ranks);
    }
    double sum = 0;
    for (int source = 0; source < num_sources; ++source) {
      sum += at(matrix, source, rank, num_ranks);
    }
    return sum;
  }
};

// What `tokens` tokens of each source make on average; what they cause is linear in their number.
// num_sources 0: as many as ranks.
Copies expected_copies(const Deployment& deployment,
                       const RoutingModel& routing,
                       double tokens,
                       double num_sources = 0);

// Experts of the rank with at least one row, on average, of `tokens` tokens of each source.
double expected_touched_experts(const Deployment& deployment,
                                const RoutingModel& routing,
                                int rank,
                                double tokens,
                                double num_sources = 0);

}  // namespace moebius::plan
