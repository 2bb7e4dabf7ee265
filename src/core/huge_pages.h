// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Large blocks of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace moebius {

// Uninitialised, aligned to 256 bytes; large blocks to a huge page, with the wish that the system
// puts them on such: code that reads megabytes here and there misses the TLB otherwise.
std::shared_ptr<std::byte> allocate_block(int64_t bytes);

}  // namespace moebius
