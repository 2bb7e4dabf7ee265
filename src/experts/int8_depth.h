// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moebius {

// Products of int8 are at most 2^14, so that i32 holds the sum of this many exactly.
inline constexpr int64_t kMaxS8Depth = (int64_t{1} << 17) - 1;

}  // namespace moebius
