// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Deployments and copies that the tests of plans share.
#pragma once

#include <vector>

#include "comm/routing/route.h"
#include "plan/copies.h"
#include "plan/formats.h"

namespace moebius::plan {

Deployment small_deployment(int ranks, int ranks_per_node, int64_t tokens);

Deployment preset_deployment(const char* preset, const char* quant, int ranks);

// Ids [T, K] without repetition; all sets are equally likely.
std::vector<int32_t> random_ids(const RoutingFacts& facts, int64_t tokens, uint64_t seed);

// The copies of these ids, with a vector per source, as the library's routes count them.
Copies counted_copies(const Deployment& d, const std::vector<std::vector<int32_t>>& ids);

}  // namespace moebius::plan
