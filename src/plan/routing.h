// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// RoutingModel: how tokens choose experts, as probabilities, with no token at hand.
// A token takes a set of K of the E experts, with a probability proportional to the product of its
// experts' weights (all 1: every set alike).  With groups, topk_groups of num_groups equal
// stretches of experts are open to a token and the set has experts in each of those and no others;
// then every pair of open groups and set has such a probability.  Where K groups or more are open,
// the K best experts are always in open ones: as without groups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moebius::plan {

struct RoutingFacts {
  int64_t num_experts = 0;  // E
  int64_t topk = 1;         // K
  int64_t num_groups = 1;   // divides E
  int64_t topk_groups = 1;
  // The n-th most popular expert has weight n^-skew; which one that is follows from E alone.
  double skew = 0;
};

class RoutingModel {
 public:
  // Throws InvalidArgument with both values: K > E, K above what the groups hold, groups that do
  // not divide E, a negative skew.
  explicit RoutingModel(const RoutingFacts& facts);

  // That a token selects expert e.
  double selected(int64_t expert) const { return selected_[static_cast<size_t>(expert)]; }
  // That some selection of a token goes to a place which takes share[e] (0 to 1) of the rows of
  // expert e: 1 where the expert lives there, 1/2 where one of two replicas does.
  double reached(std::span<const double> share) const;

 private:
  RoutingFacts facts_;
  std::vector<double> weights_;   // [E]
  long double all_ = 0;           // over all sets
  std::vector<double> selected_;  // [E]
};

}  // namespace moebius::plan
