// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Digest: 64 bits that tell contents apart.  It is no defence against somebody who wants two
// contents to have the same.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/splitmix64.h"

namespace moebius {

class Digest {
 public:
  // The sizes of the pieces count: "ab", "c" is not "a", "bc".
  void add(std::span<const std::byte> bytes) {
    add_word(bytes.size());
    while (!bytes.empty()) {
      uint64_t word = 0;
      const size_t part = std::min(bytes.size(), sizeof(word));
      std::memcpy(&word, bytes.data(), part);
      add_word(word);
      bytes = bytes.subspan(part);
    }
  }
  uint64_t value() const { return state_; }

 private:
  void add_word(uint64_t word) { state_ = splitmix64::mix((state_ ^ word) + splitmix64::kStep); }

  uint64_t state_ = 0;
};

}  // namespace moebius
