// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/tiles/items.h"

#include "core/ceil_div.h"
#include "experts/cpu/tiles/tile_kernels.h"

namespace moebius::cpu {

int64_t cut_items(const RowOrder& order,
                  int64_t num_local_experts,
                  int64_t most_rows,
                  int64_t wanted,
                  Item* items) {
  for (int64_t most = most_rows;; most = std::max(kLeastItemRows, most / 2)) {
    int64_t num_items = 0;
    for (int64_t e = 0; e < num_local_experts; ++e) {
      const int64_t rows = order.rows_of(e);
      const int64_t parts = ceil_div(rows, most);
      // All items but the last have whole panels.
      const int64_t step = parts > 0 ? ceil_div(ceil_div(rows, parts), kPanelRows) * kPanelRows : 0;
      for (int64_t begin = 0; begin < rows; begin += step) {
        items[num_items++] = {e, order.expert_offsets[e] + begin,
                              order.expert_offsets[e] + std::min(rows, begin + step)};
      }
    }
    if (most <= kLeastItemRows || num_items >= wanted) {
      return num_items;
    }
  }
}

}  // namespace moebius::cpu
