// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "moebius/error.h"

namespace moebius::plan {

namespace {

// Why: sums over sets stay within a long double, C(2^20, 128) < 10^556.
constexpr int64_t kMaxTopk = 128;
constexpr int64_t kMaxExperts = int64_t{1} << 20;

// The n-th most popular expert is n * step mod E: popular ones are spread over the ranks.
int64_t popularity_step(int64_t num_experts) {
  auto step = static_cast<int64_t>(0.618 * static_cast<double>(num_experts));
  for (step = std::max<int64_t>(1, step); std::gcd(step, num_experts) != 1; ++step) {
  }
  return step;
}

// Sum over all sets that routing can choose, of the product of their experts' weights.
// by_group[g][k]: over sets of k experts in g open groups, none of which is left out.
long double sum_over_sets(const RoutingFacts& facts, std::span<const double> weights) {
  const auto topk = static_cast<size_t>(facts.topk);
  const auto open = static_cast<size_t>(facts.topk_groups);
  const auto group_size = static_cast<size_t>(facts.num_experts / facts.num_groups);
  std::vector<std::vector<long double>> by_group(open + 1, std::vector<long double>(topk + 1, 0));
  by_group[0][0] = 1;
  std::vector<long double> group(topk + 1);
  for (size_t begin = 0; begin < weights.size(); begin += group_size) {
    std::fill(group.begin(), group.end(), 0);
    group[0] = 1;
    for (size_t e = begin; e < begin + group_size; ++e) {
      for (size_t k = topk; k > 0; --k) {
        group[k] += group[k - 1] * weights[e];
      }
    }
    for (size_t g = open; g > 0; --g) {  // the group is open, or it is not
      for (size_t k = 0; k <= topk; ++k) {
        for (size_t inside = 1; inside <= k; ++inside) {
          by_group[g][k] += by_group[g - 1][k - inside] * group[inside];
        }
      }
    }
  }
  return by_group[open][topk];
}

}  // namespace

RoutingModel::RoutingModel(const RoutingFacts& facts) : facts_(facts) {
  expect_ge(facts.num_experts, 1, "experts");
  expect_le(facts.num_experts, kMaxExperts, "experts");
  expect_ge(facts.topk, 1, "topk");
  expect_le(facts.topk, std::min(facts.num_experts, kMaxTopk), "topk");
  expect_ge(facts.num_groups, 1, "groups of experts");
  expect_multiple_of(facts.num_experts, facts.num_groups, "experts");
  expect_ge(facts.topk_groups, 1, "open groups");
  expect_le(facts.topk_groups, facts.num_groups, "open groups");
  expect_le(facts.topk, facts.topk_groups * (facts.num_experts / facts.num_groups), "topk");
  expect(facts.skew >= 0 && facts.skew <= 10,
         fmt::format("skew is {}, expected a number in [0, 10]", facts.skew));
  // The K best experts are in K groups at most, which are the K best by their best expert.
  if (facts.topk_groups >= facts.topk) {
    facts_.num_groups = facts_.topk_groups = 1;
  }
  weights_.resize(static_cast<size_t>(facts.num_experts));
  const int64_t step = popularity_step(facts.num_experts);
  for (int64_t n = 0; n < facts.num_experts; ++n) {
    weights_[static_cast<size_t>(n * step % facts.num_experts)] =
        std::pow(static_cast<double>(n + 1), -facts.skew);
  }
  all_ = sum_over_sets(facts_, weights_);
  std::vector<double> share(weights_.size(), 0.0);
  for (size_t e = 0; e < share.size(); ++e) {
    share[e] = 1;
    selected_.push_back(reached(share));
    share[e] = 0;
  }
}

double RoutingModel::reached(std::span<const double> share) const {
  std::vector<double> elsewhere = weights_;
  for (size_t e = 0; e < elsewhere.size(); ++e) {
    elsewhere[e] *= 1 - share[e];
  }
  return static_cast<double>(1 - sum_over_sets(facts_, elsewhere) / all_);
}

}  // namespace moebius::plan
