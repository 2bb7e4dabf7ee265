// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/overlap.h"

#include <fmt/format.h>

namespace moebius {

bool overlap(const Tensor& a, const Tensor& b) {
  if (!a || !b || a.nbytes() == 0 || b.nbytes() == 0) {
    return false;
  }
  return a.bytes() < b.bytes() + b.nbytes() && b.bytes() < a.bytes() + a.nbytes();
}

void expect_apart(const Tensor& output,
                  const Tensor& input,
                  std::string_view output_is,
                  std::string_view input_is) {
  expect(!overlap(output, input), [&] {
    return fmt::format("{} overlaps {}, expected memory of its own", output_is, input_is);
  });
}

}  // namespace moebius
