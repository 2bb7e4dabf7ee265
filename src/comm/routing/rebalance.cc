// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/rebalance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "moebius/error.h"

namespace moebius {

namespace {

// Whatever is counted is an index here.
using Indices = std::vector<size_t>;
using Loads = std::vector<float>;

// Which items a pack has, in the order in which they were put there.
using Packs = std::vector<Indices>;

// Puts items into packs of equal counts (the first have one more), the heaviest first, each into
// the lightest pack that has room.
Packs pack(const Loads& loads, size_t num_packs) {
  Indices order(loads.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Packs packs(num_packs);
  if (loads.size() == num_packs) {
    std::transform(order.begin(), order.end(), packs.begin(),
                   [](size_t item) { return Indices{item}; });
    return packs;
  }
  // Replicas of an expert have equal loads.  EPLB leaves their order to torch, which calls
  // std::sort of libstdc++; with more than 16 items that is another one than that of a stable sort.
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return loads[a] > loads[b]; });
  const auto room = [&](size_t p) {
    return loads.size() / num_packs + (p < loads.size() % num_packs ? 1 : 0);
  };
  using LoadAndPack = std::pair<float, size_t>;
  std::priority_queue<LoadAndPack, std::vector<LoadAndPack>, std::greater<>> open;
  for (size_t p = 0; p < num_packs && room(p) > 0; ++p) {
    open.emplace(0.0f, p);
  }
  for (const size_t item : order) {
    const auto [load, p] = open.top();
    open.pop();
    packs[p].push_back(item);
    if (packs[p].size() < room(p)) {
      open.emplace(load + loads[item], p);
    }
  }
  return packs;
}

struct Replica {
  size_t expert;
  size_t index;  // among those of its expert
};

// One replica of each expert, and then one more of that with the largest load per replica.
std::vector<Replica> replicate(const Loads& loads, size_t num_physical) {
  std::vector<Replica> replicas;
  std::vector<size_t> counts(loads.size(), 1);
  // Ties go to the lower expert.
  const auto is_behind = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  };
  using LoadAndExpert = std::pair<float, size_t>;
  std::priority_queue<LoadAndExpert, std::vector<LoadAndExpert>, decltype(is_behind)> queue(
      is_behind);
  for (size_t e = 0; e < loads.size(); ++e) {
    replicas.push_back({e, 0});
    queue.emplace(loads[e], e);
  }
  while (replicas.size() < num_physical) {
    const size_t e = queue.top().second;
    queue.pop();
    replicas.push_back({e, counts[e]++});
    queue.emplace(loads[e] / static_cast<float>(counts[e]), e);
  }
  return replicas;
}

struct Sizes {
  size_t experts, physical, groups, nodes, ranks;
};

// Groups are packed into nodes only where the shares of all nodes are equal.
Sizes with_equal_nodes(Sizes sizes) {
  const bool is_equal = sizes.groups % sizes.nodes == 0 && sizes.physical % sizes.nodes == 0 &&
                        sizes.ranks % sizes.nodes == 0 && sizes.experts % sizes.groups == 0;
  if (!is_equal) {
    sizes.groups = sizes.nodes = 1;
  }
  return sizes;
}

// The replicas of a layer, rank by rank.
std::vector<Replica> place_layer(std::span<const float> load, const Sizes& sizes) {
  const size_t group_size = sizes.experts / sizes.groups;
  Loads group_loads(sizes.groups, 0.0f);
  for (size_t e = 0; e < sizes.experts; ++e) {
    group_loads[e / group_size] += load[e];
  }
  std::vector<Replica> placed;
  for (const Indices& groups : pack(group_loads, sizes.nodes)) {
    Indices experts;  // of this node
    Loads loads;
    for (const size_t group : groups) {
      for (size_t e = group * group_size; e < (group + 1) * group_size; ++e) {
        experts.push_back(e);
        loads.push_back(load[e]);
      }
    }
    const std::vector<Replica> replicas = replicate(loads, sizes.physical / sizes.nodes);
    std::vector<size_t> counts(experts.size(), 0);
    for (const Replica& replica : replicas) {
      ++counts[replica.expert];
    }
    Loads shares;
    for (const Replica& replica : replicas) {
      shares.push_back(loads[replica.expert] / static_cast<float>(counts[replica.expert]));
    }
    for (const Indices& items : pack(shares, sizes.ranks / sizes.nodes)) {
      for (const size_t item : items) {
        placed.push_back({experts[replicas[item].expert], replicas[item].index});
      }
    }
  }
  return placed;
}

}  // namespace

Rebalanced rebalance(std::span<const float> load,
                     int64_t num_experts,
                     const RebalanceOptions& options) {
  const auto expect_count = [](int64_t value, std::string_view what) {
    expect_ge(value, 1, what);
    expect_le(value, kMostRebalanced, what);
    return static_cast<size_t>(value);
  };
  const Sizes given = {.experts = expect_count(num_experts, "num_experts"),
                       .physical = expect_count(options.num_physical, "num_physical"),
                       .groups = expect_count(options.num_groups, "num_groups"),
                       .nodes = expect_count(options.num_nodes, "num_nodes"),
                       .ranks = expect_count(options.num_ranks, "num_ranks")};
  expect_ge(options.num_physical, num_experts, "num_physical");
  expect_eq(options.policy, "deepseek", "policy");
  expect_multiple_of(static_cast<int64_t>(load.size()), num_experts, "elements of load");
  const size_t num_layers = load.size() / given.experts;
  expect_le(static_cast<int64_t>(num_layers), kMostRebalanced, "layers of load");
  for (size_t i = 0; i < load.size(); ++i) {
    expect(std::isfinite(load[i]) && load[i] >= 0, [&] {
      return fmt::format(
          "the load of expert {} in layer {} is {}, expected a finite number of at "
          "least 0",
          i % given.experts, i / given.experts, load[i]);
    });
  }
  const Sizes sizes = with_equal_nodes(given);
  Rebalanced result;
  result.replica_count.assign(load.size(), 0);
  for (size_t layer = 0; layer < num_layers; ++layer) {
    const size_t begin = layer * sizes.experts;
    for (const Replica& replica : place_layer(load.subspan(begin, sizes.experts), sizes)) {
      result.physical_to_logical.push_back(static_cast<int64_t>(replica.expert));
      result.replica_index.push_back(static_cast<int64_t>(replica.index));
      ++result.replica_count[begin + replica.expert];
    }
  }
  return result;
}

}  // namespace moebius
