// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Probes: a few rows that stand for all rows of a tensor, since the float64 reference is too slow
// for all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "moebius/tensor.h"

namespace moebius::bench {

// The i-th of `num_probes` rows that are spread over `num_rows`, from the first to the last.
inline int64_t probe_row(int64_t i, int64_t num_probes, int64_t num_rows) {
  return num_probes == 1 ? 0 : i * (num_rows - 1) / (num_probes - 1);
}

// Writes `probes` [P, n] over rows of `rows` [T, n] on the CPU; only the first T of them where T is
// smaller.
void put_probes(const Tensor& probes, const Tensor& rows);

// How the probes among `rows` [T, n] differ from `expected` f32 [P, n] by more than `tolerance`;
// nullopt when they do not.
std::optional<std::string> probe_difference(const Tensor& rows,
                                            const Tensor& expected,
                                            double tolerance);

}  // namespace moebius::bench
