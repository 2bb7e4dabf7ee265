// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Our own memory on the host: blocks that lie in huge pages where they are large and the system has
// them.  Experts read hundreds of MB of weights, which small pages would make slower.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "moebius/allocator.h"

namespace moebius {

std::shared_ptr<Allocator> host_allocator();

// The same memory without the allocator of the caller, for what is not counted: windows.  Throws
// OutOfMemory with the bytes.
std::shared_ptr<std::byte> allocate_block(int64_t bytes);

// Linux gives more memory than there is, and kills a process that then writes to it.  Throws
// OutOfMemory with both numbers, before so many bytes are written to, unless they are available to
// the machine and to the container of the process.
void expect_available(int64_t bytes);

}  // namespace moebius
