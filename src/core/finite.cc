// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/finite.h"

#include <algorithm>
#include <cstring>

namespace moebius {

namespace {

// The elements of a word of 64 bits, all of which have one type.  In NaN and infinity every bit of
// the exponent is set (in e4m3, of the magnitude).  When 1 is added in the last of these bits, only
// they carry into the bit above, which was cleared.
struct Lanes {
  uint64_t special;  // the bits that are all set in NaN and infinity
  uint64_t last;     // the last of them
  uint64_t above;    // the bit above them
};

constexpr Lanes lanes_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {0x7f8000007f800000u, 0x0080000000800000u, 0x8000000080000000u};
    case DType::kBF16:
      return {0x7f807f807f807f80u, 0x0080008000800080u, 0x8000800080008000u};
    case DType::kF16:
      return {0x7c007c007c007c00u, 0x0400040004000400u, 0x8000800080008000u};
    default:  // e4m3
      return {0x7f7f7f7f7f7f7f7fu, 0x0101010101010101u, 0x8080808080808080u};
  }
}

uint64_t carries(const Lanes& lanes, uint64_t word) {
  return ((word & lanes.special) + lanes.last) & lanes.above;
}

// Whether one of the elements in `bytes` bytes is not finite.
bool has_nonfinite(const Lanes& lanes, const std::byte* data, int64_t bytes) {
  constexpr int64_t kWord = sizeof(uint64_t);
  uint64_t found = 0;
  for (int64_t i = 0; i < bytes / kWord; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, data + i * kWord, kWord);
    found |= carries(lanes, word);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, data + bytes / kWord * kWord, static_cast<size_t>(bytes % kWord));
  return (found | carries(lanes, rest)) != 0;
}

}  // namespace

std::optional<int64_t> first_nonfinite(DType dtype, const std::byte* data, int64_t n) {
  if (dtype == DType::kE8M0) {
    const void* at = n > 0 ? std::memchr(data, 0xff, static_cast<size_t>(n)) : nullptr;
    return at != nullptr ? std::optional(static_cast<const std::byte*>(at) - data) : std::nullopt;
  }
  if (!is_float(dtype) && dtype != DType::kF8E4M3) {
    return std::nullopt;
  }
  const Lanes lanes = lanes_of(dtype);
  const int64_t element = bits(dtype) / 8;
  constexpr int64_t kBlock = 1 << 14;  // elements between two looks at the result
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t last = std::min(n, first + kBlock);
    if (!has_nonfinite(lanes, data + first * element, (last - first) * element)) {
      continue;
    }
    int64_t i = first;
    while (!has_nonfinite(lanes, data + i * element, element)) {
      ++i;
    }
    return i;
  }
  return std::nullopt;
}

}  // namespace moebius
