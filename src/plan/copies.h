// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Copies: how many rows go from each rank to each rank and node, expected or counted.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/deployment.h"

namespace moebius::plan {

// Each matrix is [sources, destinations] and includes the own rank and node.  Where all sources are
// alike, a matrix has a single row.
struct Copies {
  std::vector<double> to_rank;     // tokens with at least one selection on the rank
  std::vector<double> to_node;     // the same for nodes
  std::vector<double> selections;  // (token, expert) pairs
  double num_sources = 1;          // see Deployment::num_sources()
  int num_ranks = 1;
  int num_nodes = 1;

  double rank_copies(int source, int rank) const { return at(to_rank, source, rank, num_ranks); }
  double node_copies(int source, int node) const { return at(to_node, source, node, num_nodes); }
  double rank_selections(int source, int rank) const {
    return at(selections, source, rank, num_ranks);
  }
  // The rows that a rank receives, including its own.
  double received(int rank) const { return received(to_rank, rank); }
  double received_selections(int rank) const { return received(selections, rank); }
  // The rank that computes most rows; the first one if there are several.
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

// The average copies of `tokens` tokens of each source, in proportion to `tokens`.  num_sources 0
// stands for the number of ranks.
Copies expected_copies(const Deployment& deployment,
                       const RoutingModel& routing,
                       double tokens,
                       double num_sources = 0);

// The average number of the rank's experts that get at least one row when each source has `tokens`
// tokens.
double expected_touched_experts(const Deployment& deployment,
                                const RoutingModel& routing,
                                int rank,
                                double tokens,
                                double num_sources = 0);

}  // namespace moebius::plan
