// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks that a launcher started have command lines, environments and files of their own.  They
// compare once, before anything else they do together, what must be equal on all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/options.h"
#include "app/run/layer_input.h"
#include "app/run/rank_plan.h"
#include "moebius/checkpoint.h"
#include "moebius/group.h"

namespace moebius::app {

// One thing that must be equal on all ranks.
struct Agreed {
  std::string name;         // "--layer"
  std::string value;        // as messages show it; compared, too, where there is no digest
  uint64_t digest = 0;      // of a content
  bool is_content = false;  // the digest decides: a file may have another path on another machine
};

// Returns what the ranks of a run must have in common: the build, options and settings that decide
// what is computed or which calls ranks make together, and the content of input and model.  Weights
// of experts are not read; configuration, router and shapes tell models apart.
std::vector<Agreed> agreed_values(const RunOptions& options,
                                  const RankPlan& plan,
                                  const Checkpoint& checkpoint,
                                  int64_t layer,
                                  const LayerInput& input);

// Collective.  Throws the same InvalidArgument on every rank where values differ: it names the
// first of them, both values, and rank 0 and the first rank that differs from it.  It throws on
// rank 0 first, which must then abort the group; the other ranks wait for that.
void expect_agreement(const std::vector<Agreed>& values, Group& group);

}  // namespace moebius::app
