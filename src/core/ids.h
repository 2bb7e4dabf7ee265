// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Expert ids as callers bring them and want them back: i32 or i64, on CPUs and GPUs.  Every place
// that reads or writes ids of a caller goes through these views, so that nothing is converted.
#pragma once

#include <cstdint>
#include <limits>
#include <source_location>
#include <string_view>

#include "core/cuda/signal_word.h"
#include "core/forward.h"

namespace moebius {

// What an id that has more than 32 bits reads as; it is outside of every [-1, E).
inline constexpr int32_t kWideId = std::numeric_limits<int32_t>::min();

// Ids of any shape, as words of 32 bits; the low word of an i64 comes first.
struct Ids {
  const int32_t* words = nullptr;
  int words_per_id = 1;  // 1: i32, 2: i64

  // REQUIRES: i32 or i64; an undefined tensor has no words.
  static Ids of(const Tensor& ids);
  MOEBIUS_HOST_DEVICE explicit constexpr operator bool() const { return words != nullptr; }
  MOEBIUS_HOST_DEVICE constexpr int32_t operator[](int64_t i) const {
    const int32_t low = words[i * words_per_id];
    return words_per_id == 1 || words[2 * i + 1] == low >> 31 ? low : kWideId;
  }
  // The ids from this one on.
  MOEBIUS_HOST_DEVICE constexpr Ids from(int64_t i) const {
    return {words + i * words_per_id, words_per_id};
  }
  // What an error says of an id: all of its bits.
  int64_t value(int64_t i) const {
    return words_per_id == 1 ? words[i]
                             : static_cast<int64_t>(static_cast<uint64_t>(words[2 * i + 1]) << 32 |
                                                    static_cast<uint32_t>(words[2 * i]));
  }
};

// Where ids are written.
struct IdsOut {
  int32_t* words = nullptr;
  int words_per_id = 1;

  static IdsOut of(const Tensor& ids);
  MOEBIUS_HOST_DEVICE constexpr void set(int64_t i, int32_t id) const {
    words[i * words_per_id] = id;
    if (words_per_id == 2) {
      words[2 * i + 1] = id >> 31;
    }
  }
};

// Throws InvalidArgument, naming the dtype, unless the ids are i32 or i64.
void expect_id_dtype(const Tensor& ids,
                     std::string_view what,
                     std::source_location where = std::source_location::current());

}  // namespace moebius
