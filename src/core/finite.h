// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Looks for NaN and infinity in memory, at the speed at which memory is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "moebius/dtype.h"

namespace moebius {

// The index of the first of n elements that is NaN or infinite; nullopt when there is none.  Types
// other than f32, bf16, f16, e4m3 and e8m0 have only finite numbers here.  `data` may be unaligned.
std::optional<int64_t> first_nonfinite(DType dtype, const std::byte* data, int64_t n);

}  // namespace moebius
