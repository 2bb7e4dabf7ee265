// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "moebius/error.h"

namespace moebius::plan {

namespace {

// Why: with these bounds sums over sets fit a long double, since C(2^20, 128) < 10^556.
constexpr int64_t kMaxTopk = 128;
constexpr int64_t kMaxExperts = int64_t{1} << 20;

// The n-th most popular expert is n * step mod E, so that popular experts are spread over the
// ranks.
int64_t popularity_step(int64_t num_experts) {
  auto step = static_cast<int64_t>(0.618 * static_cast<double>(num_experts));
  for (step = std::max<int64_t>(1, step); std::gcd(step, num_experts) != 1; ++step) {
  }
  return step;
}

// Element k is the sum, over all sets of k experts, of the product of the experts' weights.
using Sums = std::vector<long double>;
// Element [g][k] is the same sum over sets of k experts that lie in g open groups, with at least
// one in each.
using GroupSums = std::vector<Sums>;

Sums no_experts(const RoutingFacts& facts) {
  Sums sums(static_cast<size_t>(facts.topk) + 1, 0);
  sums[0] = 1;
  return sums;
}

GroupSums no_groups(const RoutingFacts& facts) {
  GroupSums sums(static_cast<size_t>(facts.topk_groups) + 1,
                 Sums(static_cast<size_t>(facts.topk) + 1, 0));
  sums[0][0] = 1;
  return sums;
}

void add_expert(Sums& sums, double weight) {
  for (size_t k = sums.size() - 1; k > 0; --k) {
    sums[k] += sums[k - 1] * weight;
  }
}

// The part of element [g][k] with experts in `group`, when `others` are the sums of the other
// groups.
long double sum_with(const GroupSums& others, const Sums& group, size_t g, size_t k) {
  long double sum = 0;
  for (size_t inside = 1; inside <= k; ++inside) {
    sum += others[g - 1][k - inside] * group[inside];
  }
  return sum;
}

void add_group(GroupSums& sums, const Sums& group) {
  for (size_t g = sums.size() - 1; g > 0; --g) {  // the group may be open or not
    for (size_t k = 0; k < group.size(); ++k) {
      sums[g][k] += sum_with(sums, group, g, k);
    }
  }
}

std::vector<Sums> sums_of_groups(const RoutingFacts& facts, std::span<const double> weights) {
  const auto group_size = static_cast<size_t>(facts.num_experts / facts.num_groups);
  std::vector<Sums> groups;
  for (size_t begin = 0; begin < weights.size(); begin += group_size) {
    groups.push_back(no_experts(facts));
    for (const double weight : weights.subspan(begin, group_size)) {
      add_expert(groups.back(), weight);
    }
  }
  return groups;
}

// The sum over all sets that routing can choose.
long double sum_over_sets(const RoutingFacts& facts, std::span<const double> weights) {
  GroupSums sums = no_groups(facts);
  for (const Sums& group : sums_of_groups(facts, weights)) {
    add_group(sums, group);
  }
  return sums.back().back();
}

// Calls visit(i, sums) for each i, where `sums` has all of [begin, end) added but i.  Why by
// halves: this takes n log n additions and no subtractions, which would lose digits.
template <typename Set, typename Add, typename Visit>
void leave_out_each(size_t begin, size_t end, Set sums, const Add& add, const Visit& visit) {
  if (end - begin == 1) {
    visit(begin, sums);
    return;
  }
  const size_t middle = begin + (end - begin) / 2;
  Set without_first = sums;
  for (size_t i = begin; i < middle; ++i) {
    add(without_first, i);
  }
  for (size_t i = middle; i < end; ++i) {
    add(sums, i);
  }
  leave_out_each(begin, middle, std::move(sums), add, visit);
  leave_out_each(middle, end, std::move(without_first), add, visit);
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
         [&] { return fmt::format("skew is {}, expected a number in [0, 10]", facts.skew); });
  // The K best experts lie in at most K groups, which are among the K best groups when groups are
  // ranked by their best expert.
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
  selected_.resize(weights_.size());
  const std::vector<Sums> groups = sums_of_groups(facts_, weights_);
  const size_t group_size = weights_.size() / groups.size();
  leave_out_each(
      0, groups.size(), no_groups(facts_),
      [&](GroupSums& sums, size_t g) { add_group(sums, groups[g]); },
      [&](size_t g, const GroupSums& others) {
        leave_out_each(
            g * group_size, (g + 1) * group_size, no_experts(facts_),
            [&](Sums& sums, size_t e) { add_expert(sums, weights_[e]); },
            [&](size_t e, const Sums& group) {
              const long double missed =
                  others.back().back() +
                  sum_with(others, group, others.size() - 1, group.size() - 1);
              selected_[e] = static_cast<double>(1 - missed / all_);
            });
      });
}

double RoutingModel::reached(std::span<const double> share) const {
  std::vector<double> elsewhere = weights_;
  for (size_t e = 0; e < elsewhere.size(); ++e) {
    elsewhere[e] *= 1 - share[e];
  }
  return static_cast<double>(1 - sum_over_sets(facts_, elsewhere) / all_);
}

}  // namespace moebius::plan
