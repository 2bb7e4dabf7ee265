// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Division by a number that is known when a kernel is launched: a multiplication and a shift, where
// the GPU takes some twenty instructions for a division.
#pragma once

#include <bit>
#include <cstdint>

#include "core/cuda/signal_word.h"  // MOEBIUS_HOST_DEVICE

namespace moebius::comm {

struct Divisor {
  int32_t divisor;
  uint32_t factor;  // 2^shift / divisor, rounded up
  uint32_t shift;

  // REQUIRES: divisor > 0.
  static constexpr Divisor of(int divisor) {
    // Why it is exact for 0 <= n < 2^31: with d <= 2^s, the factor exceeds 2^(31 + s) / d by less
    // than 1, so n times it exceeds n * 2^(31 + s) / d by less than 2^31, which is at most the
    // 2^(31 + s) / d that n / d is short of the next integer by.
    const auto d = static_cast<uint32_t>(divisor);
    const auto s = static_cast<uint32_t>(std::bit_width(d - 1));
    const uint64_t power = uint64_t{1} << (31 + s);
    return {divisor, static_cast<uint32_t>((power + d - 1) / d), 31 + s};
  }
  // REQUIRES: n >= 0.
  MOEBIUS_HOST_DEVICE constexpr int32_t quotient(int32_t n) const {
    return static_cast<int32_t>(uint64_t{static_cast<uint32_t>(n)} * factor >> shift);
  }
};

}  // namespace moebius::comm
