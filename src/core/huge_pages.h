// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Large blocks of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace moebius {

// Returns an uninitialised block that is aligned to 256 bytes.  Large blocks are aligned to a huge
// page, and the system is asked to use huge pages for them, because code that reads megabytes in no
// order would otherwise miss the TLB.  Throws std::bad_alloc.
std::shared_ptr<std::byte> allocate_block(int64_t bytes);

}  // namespace moebius
