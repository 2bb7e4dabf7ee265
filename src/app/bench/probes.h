// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moebius::bench {

// The i-th of `num_probes` rows that stand for `num_rows`, from the first to the last.
inline int64_t probe_row(int64_t i, int64_t num_probes, int64_t num_rows) {
  return num_probes == 1 ? 0 : i * (num_rows - 1) / (num_probes - 1);
}

}  // namespace moebius::bench
