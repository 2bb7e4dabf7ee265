// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "moebius/tensor.h"

namespace moebius {

// The index of the first byte of a tensor on the CPU whose bits of `mask` are more than `most`.
// Why by the largest of a block: a layer has up to 10^8 scale codes, and loading a model should not
// wait for them to be looked at one by one.
inline std::optional<int64_t> first_above(const Tensor& tensor, uint8_t mask, uint8_t most) {
  constexpr int64_t kBlock = 4096;
  const auto* bytes = reinterpret_cast<const uint8_t*>(tensor.bytes());
  const int64_t n = tensor.nbytes();
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n);
    uint8_t largest = 0;
    for (int64_t i = begin; i < end; ++i) {
      largest = std::max(largest, static_cast<uint8_t>(bytes[i] & mask));
    }
    if (largest > most) {
      const auto* found = std::find_if(bytes + begin, bytes + end,
                                       [&](uint8_t byte) { return (byte & mask) > most; });
      return found - bytes;
    }
  }
  return std::nullopt;
}

}  // namespace moebius
