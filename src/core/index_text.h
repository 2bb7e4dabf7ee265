// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "moebius/tensor.h"

namespace moebius {

// The index of the element with the flat index i, for messages: "[3, 17]".
inline std::string index_text(const Shape& shape, int64_t i) {
  std::string text;
  for (int d = shape.size() - 1; d >= 0; --d) {
    text = fmt::format("{}{}{}", i % shape[d], text.empty() ? "" : ", ", text);
    i /= shape[d];
  }
  return fmt::format("[{}]", text);
}

}  // namespace moebius
