// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/bench/probes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "moebius/tolerance.h"

namespace moebius::bench {

void put_probes(const Tensor& probes, const Tensor& rows) {
  const int64_t num = std::min(probes.dim(0), rows.dim(0));
  for (int64_t i = 0; i < num; ++i) {
    std::memcpy(rows[probe_row(i, num, rows.dim(0))].raw(), probes[i].raw(),
                static_cast<size_t>(probes[i].nbytes()));
  }
}

std::optional<std::string> probe_difference(const Tensor& rows,
                                            const Tensor& expected,
                                            double tolerance) {
  const int64_t num = std::min(expected.dim(0), rows.dim(0));
  RelativeError error;
  for (int64_t i = 0; i < num; ++i) {
    const Tensor actual = rows[probe_row(i, num, rows.dim(0))];
    for (int64_t h = 0; h < actual.numel(); ++h) {
      error.add(get_float(actual, h), get_float(expected[i], h));
    }
  }
  if (error.value() <= tolerance) {
    return std::nullopt;
  }
  return fmt::format("relative error {:.2e} over {} tokens, tolerance {:.2e}", error.value(), num,
                     tolerance);
}

}  // namespace moebius::bench
