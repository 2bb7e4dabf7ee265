// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Allocator: where the memory of tensors, pools, packed weights and scratch comes from.  The caller
// may replace it for the host and for each GPU, and can ask how much there is.
//
// Four things do not come from allocators: what ranks share (the windows of a Group: their memory
// must be mapped by other processes or GPUs), the small pinned records in which kernels report to
// the host, what a CUDA graph allocates in its own nodes, and what C++ containers of the host hold.
// Thread-safety: any thread may call any function, and so an Allocator's functions, at any time.
#pragma once

#include <cstdint>
#include <memory>

#include "moebius/api.h"
#include "moebius/device.h"

namespace moebius MOEBIUS_API {

class Allocator {
 public:
  virtual ~Allocator() = default;

  // Returns `bytes` > 0 bytes of `device`, at an address that is a multiple of `alignment` (a power
  // of two, 256 today).  On a GPU, which is then the thread's current device, the memory must be
  // ready for what is enqueued on `stream` (a cudaStream_t) from now on, as with cudaMallocAsync;
  // on the CPU `stream` is null.  It must not wait for a GPU, where kernels may be waiting for this
  // rank.  It may throw, or return null; the caller of the library then sees an OutOfMemory with
  // the bytes and the device, and what the allocator has said.  What it throws as an Error is
  // passed on.  It must not call the library.
  virtual void* allocate(int64_t bytes, int64_t alignment, Device device, void* stream) = 0;

  // Takes back what allocate() of this object gave.  On a GPU, work that was enqueued on `stream`
  // before may still use the memory, as with cudaFreeAsync.  Any thread may call it, also while the
  // process ends.
  virtual void deallocate(void* data, int64_t bytes, Device device, void* stream) noexcept = 0;
};

// From now on memory of the device comes from this allocator; null brings ours back: operator new
// with huge pages on the CPU, and a memory pool of the driver on a GPU.  What was allocated before
// goes back to the allocator that gave it, which is kept until then.  Throws InvalidArgument for a
// negative index; the GPU need not exist yet.
void set_allocator(Device device, std::shared_ptr<Allocator> allocator);

// Counts of what came through allocators of the device, since the process began.
struct MemoryStatistics {
  int64_t bytes = 0;            // allocated now
  int64_t peak_bytes = 0;       // the most at any time, or since reset_peak_memory()
  int64_t num_blocks = 0;       // allocated now
  int64_t num_allocations = 0;  // ever
};
MemoryStatistics memory_statistics(Device device);
void reset_peak_memory(Device device);  // the peak becomes what is allocated now

// Gives back memory of the device that the library keeps for later calls and that nobody uses: the
// scratch of streams, and what our own pool holds for the next allocation.  The host does not wait.
// Workspaces have a trim() of their own.  Throws Unsupported as expect_usable() does, and
// CudaError.
void trim_memory(Device device);

}  // namespace moebius
