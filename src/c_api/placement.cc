// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string_view>
#include <vector>

#include "c_api/status.h"
#include "c_api/structs.h"
#include "moebius/rebalance.h"

using namespace moebius;
using namespace moebius::c_api;

moebius_status moebius_rebalance(const float* load,
                                 int64_t num_layers,
                                 int64_t num_experts,
                                 const moebius_rebalance_options* options,
                                 const moebius_rebalanced* out) {
  return guarded([&] {
    const moebius_rebalance_options given = read_struct(options, "options");
    const moebius_rebalanced places = read_struct(out, "out");
    expect_ge(num_layers, 0, "num_layers");
    expect_le(num_layers, kMostRebalanced, "num_layers");
    expect_ge(num_experts, 1, "num_experts");
    expect_le(num_experts, kMostRebalanced, "num_experts");
    expect(load != nullptr || num_layers == 0, "load is null");
    expect(places.physical_to_logical != nullptr, "physical_to_logical of out is null");
    const auto or_one = [](int64_t count) { return count == 0 ? 1 : count; };
    const Rebalanced result = rebalance(
        {load, static_cast<size_t>(num_layers * num_experts)}, num_experts,
        {.num_physical = given.num_physical,
         .num_groups = or_one(given.num_groups),
         .num_nodes = or_one(given.num_nodes),
         .num_ranks = or_one(given.num_ranks),
         .policy = given.policy == nullptr ? std::string_view("deepseek") : given.policy});
    const auto write = [](const std::vector<int64_t>& values, int64_t* place) {
      if (place != nullptr) {
        std::copy(values.begin(), values.end(), place);
      }
    };
    write(result.physical_to_logical, places.physical_to_logical);
    write(result.replica_index, places.replica_index);
    write(result.replica_count, places.replica_count);
  });
}
