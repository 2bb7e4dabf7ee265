// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory from the allocator of a device (moebius/allocator.h), which counts it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "core/forward.h"
#include "moebius/device.h"

namespace moebius {

// Memory that any thread and stream may use from now on, 256-byte aligned.  The last handle on
// memory of a GPU is destroyed after the work that uses it, or after give_back_after() in the same
// thread.  Throws OutOfMemory with the bytes, and Unsupported.
std::shared_ptr<void> allocate(int64_t bytes, Device device);

// Memory of a GPU for work of this stream alone.  The handle may be destroyed as soon as that work
// is enqueued.  The stream keeps it for the next call, so that calls which repeat allocate nothing;
// while a graph is recorded, the memory is the graph's instead.  Throws as allocate() does.
std::shared_ptr<void> allocate_on(int64_t bytes, const Stream& stream);

// The host, or an allocator of the caller's, has no memory.  `reason` is what the latter has said.
[[noreturn]] void throw_out_of_memory(int64_t bytes, Device device, std::string_view reason = {});

namespace detail {
// Asks the allocator.  On a GPU the device must be current.  The memory is for what is enqueued on
// `stream` from now on, and is freed in the order of that stream.
std::shared_ptr<void> take_memory(int64_t bytes, Device device, void* stream);
}  // namespace detail

}  // namespace moebius
