// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/rows/batched_rows.h"

#include <fmt/format.h>

namespace moebius {

BatchedRows batched_rows(const Tensor& ids,
                         int64_t first_expert,
                         int64_t num_local_experts,
                         int64_t max_rows) {
  BatchedRows result;
  result.row.assign(static_cast<size_t>(ids.numel()), -1);
  result.counts.assign(static_cast<size_t>(num_local_experts), 0);
  const auto* id = ids.data<int32_t>();
  for (size_t i = 0; i < result.row.size(); ++i) {
    const int64_t expert = id[i] - first_expert;
    if (id[i] >= 0 && expert >= 0 && expert < num_local_experts) {
      int32_t& count = result.counts[static_cast<size_t>(expert)];
      result.row[i] = expert * max_rows + count++;
    }
  }
  for (size_t e = 0; e < result.counts.size(); ++e) {
    expect_le(result.counts[e], max_rows, fmt::format("number of rows for local expert {}", e));
  }
  return result;
}

}  // namespace moebius
