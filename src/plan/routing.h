// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// RoutingModel: the probabilities with which tokens choose experts.
// A token takes a set of K of the E experts.  The probability of a set is proportional to the
// product of its experts' weights; if all weights are 1, all sets are equally likely.  With groups,
// experts are cut into num_groups equal stretches, of which topk_groups are open to a token, and
// the set has experts in each open group and in no other.  Every pair of open groups and set then
// has such a probability.  Where at least K groups are open, the K best experts always lie in open
// ones, so groups make no difference.
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
  // The n-th most popular expert has the weight n^-skew.  Which expert that is depends on E alone.
  double skew = 0;
};

class RoutingModel {
 public:
  // Throws InvalidArgument with both values where K exceeds E or the experts of open groups, where
  // groups do not divide E, and for a skew outside [0, 10].
  explicit RoutingModel(const RoutingFacts& facts);

  // The probability that a token selects the expert.
  double selected(int64_t expert) const { return selected_[static_cast<size_t>(expert)]; }
  // The probability that a selection of a token goes to a rank that takes share[e] of the rows of
  // every expert e.  A share is 1 where the expert lives there, and 1/2 where one of its two
  // replicas does.
  double reached(std::span<const double> share) const;

 private:
  RoutingFacts facts_;
  std::vector<double> weights_;   // [E]
  long double all_ = 0;           // the sum over all sets
  std::vector<double> selected_;  // [E]
};

}  // namespace moebius::plan
