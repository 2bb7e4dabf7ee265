// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What core does through the CUDA runtime, without its headers.  In a build without CUDA every
// function but device_count throws Unsupported (src/absent/absent.cc).
// A `stream` or `event` is a cudaStream_t or cudaEvent_t.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "moebius/device.h"

namespace moebius::cuda {

int device_count();
CudaDeviceInfo device_info(int index);
void expect_usable(int index);
// Ranks of this process will share GPUs, so that nothing may wait for a GPU to be idle, as loading
// a kernel does, nor two streams share a hardware queue.  Before the first call of CUDA.
void prepare_for_shared_gpus();
// Of a GPU, for this process, as its environment says.
int hardware_queues();
void make_current(int index);  // the device of this thread's later calls that name none

// Device memory, 256-byte aligned, from a pool of ours: neither taking nor giving back waits for
// work of the device, so that a rank may do both while a kernel of another rank waits for it.
// REQUIRES: the last handle goes only after the work that uses the memory, or after
// give_back_after() in the same thread.
std::shared_ptr<void> allocate(int64_t bytes, int index);
// The same in the order of a stream's work, taken and given back: the handle may go as soon as what
// uses the memory is enqueued.  REQUIRES: the stream outlives the handle.
std::shared_ptr<void> allocate_on(int64_t bytes, void* stream, int index);
// As allocate(), and the GPUs named may load and store it too, as all else that is allocated here.
std::shared_ptr<void> allocate_shared(int64_t bytes, int index, std::span<const int> peers);

// Nobody is given what this thread gives back of a GPU's memory from now on before the stream's
// work until now is done.  The host does not wait.
void give_back_after(void* stream, int index);

// Returns what the pools hold and nobody uses to the driver, for allocations made elsewhere.
void give_back_unused_memory(int index);

// Enqueued.  Either side may be host memory, or memory that the stream's GPU reaches.
void copy(void* to, const void* from, int64_t bytes, void* stream, int stream_index);
// Enqueued, from one GPU to another or the same, on a stream of one of them.
void copy_between(void* to,
                  int to_index,
                  const void* from,
                  int from_index,
                  int64_t bytes,
                  void* stream,
                  int stream_index);
void fill_zero(void* to, int64_t bytes, void* stream, int stream_index);
// The same on a stream of this thread; done when the call returns.
void copy_now(void* to, const void* from, int64_t bytes, int index);
void fill_zero_now(void* to, int64_t bytes, int index);

std::shared_ptr<void> make_stream(int index);
void synchronize_stream(void* stream, int index);
std::shared_ptr<void> record_event(void* stream, int index, bool is_timed);  // a new event
// Between two timed events, which are waited for.
std::chrono::nanoseconds elapsed(void* from, void* to);
void wait_event(void* stream, int index, void* event);
void synchronize_event(void* event);
bool is_event_complete(void* event);

// What `work` enqueues on the stream, as a cudaGraphExec_t; none of it runs.
std::shared_ptr<void> capture(void* stream, int index, const std::function<void()>& work);
void launch_graph(void* graph, void* stream, int index);
// Which capture the stream is in, a number of its own for each; 0: none.
uint64_t capture_id(void* stream, int index);

}  // namespace moebius::cuda
