// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Items: the work of a call is cut into items, which are some rows of one expert each.
#pragma once

#include <algorithm>
#include <cstdint>

#include "experts/permute.h"

namespace moebius::cpu {

struct Item {
  int64_t e;
  int64_t begin;  // in computing order
  int64_t end;
  int64_t rows() const { return end - begin; }
};

inline constexpr int64_t kLeastItemRows = 64;

// The most items that cut_items() makes of `slots` rows, whichever experts they belong to.
inline int64_t max_items(int64_t num_local_experts, int64_t slots) {
  return std::min(num_local_experts, slots) + slots / kLeastItemRows;
}

// Cuts the rows of each expert into as few items of at most `most_rows` rows as possible, or into
// smaller ones until there are `wanted`.  Returns their number; `items` has room for max_items().
int64_t cut_items(const RowOrder& order,
                  int64_t num_local_experts,
                  int64_t most_rows,
                  int64_t wanted,
                  Item* items);

}  // namespace moebius::cpu
