// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Owners of memory that streams may still use (Tensor::record_stream).  They are dropped once these
// streams have done what they had to do; nobody waits for that.
// Thread-safety: any thread may call any function.
#pragma once

#include <memory>

#include "moebius/stream.h"

namespace moebius {

// Drops the owner after the present work of the stream.  It looks for that when memory is
// allocated, trimmed or released.  While the stream is captured the owner is dropped at once, since
// nobody can tell when a graph is launched last: what graphs use stays the caller's, or is memory
// that a transport keeps.  Never throws: where the stream cannot be asked, the owner is kept for
// good, and that is logged.
void release_after(std::shared_ptr<void> owner, const Stream& stream) noexcept;

// A handle that keeps the owner.  Once the last copy is gone, it is released after the stream.
std::shared_ptr<void> released_after(std::shared_ptr<void> owner, const Stream& stream);

// Drops the owners whose streams are done.
void release_finished() noexcept;

// For memory that is used again in the order of streams: drops the owner at once where it waits
// here, and makes `stream` wait for what it has waited for.  Does nothing while the stream is
// captured, since a graph cannot wait for work outside of it.  Throws CudaError; the owner then
// stays.
void release_in_order(const std::weak_ptr<void>& owner, const Stream& stream);

}  // namespace moebius
