// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of the CUDA runtime that core uses, declared without CUDA's headers.  In a build
// without CUDA they throw Unsupported, except for device_count, hardware_queues and
// prepare_for_shared_gpus (src/absent/absent.cc).
// `stream` is a cudaStream_t and `event` a cudaEvent_t.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "moebius/allocator.h"
#include "moebius/device.h"

namespace moebius::cuda {

int device_count();
CudaDeviceInfo device_info(int index);
void expect_usable(int index);
// Call this before the first call of CUDA if ranks of this process will share GPUs.  Then nothing
// may wait until a GPU is idle, as loading a kernel would, and two streams must not share a
// hardware queue.
void prepare_for_shared_gpus();
// How many hardware queues a GPU has for this process, as its environment says.
int hardware_queues();
void make_current(int index);  // the device of this thread's later calls that name none

// Device memory comes from a pool of our own, 256-byte aligned, unless the caller has set another
// allocator.  Neither allocating nor freeing waits for work of the device, so a rank may do both
// while a kernel of another rank waits for it.
std::shared_ptr<Allocator> pool_allocator(int index);
// What allocate() of core/allocate.h does on a GPU.
std::shared_ptr<void> allocate_from_allocator(int64_t bytes, int index);
// Memory of our pool that is allocated and freed in the order of a stream's work.  Where the stream
// is captured, both become nodes of the graph.  REQUIRES: the stream outlives the handle.
std::shared_ptr<void> allocate_in_graph(int64_t bytes, void* stream, int index);
// Calls `body` while the device is this thread's current one.
void on_device(int index, const std::function<void()>& body);
// Memory of our pool, ready for all streams, that the GPUs in `peers` may load and store, and with
// it all other memory of the pool.
std::shared_ptr<void> allocate_shared(int64_t bytes, int index, std::span<const int> peers);

// From now on, memory of the GPU that this thread frees is not given to anybody before the present
// work of the stream is done.  The host does not wait.
void give_back_after(void* stream, int index);

// Returns unused memory of the pools to the driver, for allocations that other libraries make.
void give_back_unused_memory(int index);

// Enqueues a copy.  Either side may be host memory or memory that the stream's GPU can access.
void copy(void* to, const void* from, int64_t bytes, void* stream, int stream_index);
// Enqueues a copy between two GPUs, or on one GPU, on a stream of one of them.
void copy_between(void* to,
                  int to_index,
                  const void* from,
                  int from_index,
                  int64_t bytes,
                  void* stream,
                  int stream_index);
// Enqueues copies of `count` rows of `bytes` each to rows without gaps; `step` bytes lie between
// the beginnings of two rows that are read.
void copy_rows(void* to,
               const void* from,
               int64_t step,
               int64_t bytes,
               int64_t count,
               void* stream,
               int stream_index);
void fill_zero(void* to, int64_t bytes, void* stream, int stream_index);
// The same on a stream of this thread; the work is done when the call returns.
void copy_now(void* to, const void* from, int64_t bytes, int index);
void fill_zero_now(void* to, int64_t bytes, int index);

std::shared_ptr<void> make_stream(int index);
void synchronize_stream(void* stream, int index);
std::shared_ptr<void> record_event(void* stream, int index, bool is_timed);  // a new event
// Waits for two timed events and returns the time between them.
std::chrono::nanoseconds elapsed(void* from, void* to);
void wait_event(void* stream, int index, void* event);
void synchronize_event(void* event);
bool is_event_complete(void* event);

// Records what `work` enqueues on the stream, as a cudaGraphExec_t; none of it runs.
std::shared_ptr<void> capture(void* stream, int index, const std::function<void()>& work);
void launch_graph(void* graph, void* stream, int index);
// The number of the capture that the stream is in, which differs from capture to capture; 0
// outside.
uint64_t capture_id(void* stream, int index);

}  // namespace moebius::cuda
