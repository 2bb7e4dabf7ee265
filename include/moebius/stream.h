// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Stream and Event: the order of work on a device.
//
// Every function that launches work takes a Stream.  On CUDA both classes wrap the runtime's
// objects.  On the CPU the work is done when a call returns, so every event is complete when it is
// recorded; a CPU stream carries the number of threads that a call may use.
// Ownership: both are handles, and copies share the underlying object.  Ours end with the last
// handle; those of the caller's (wrap_cuda) are never destroyed here.
// Thread-safety: one thread at a time uses a handle.  Calls on CUDA throw CudaError.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "moebius/api.h"
#include "moebius/device.h"

namespace moebius MOEBIUS_API {

namespace detail {
struct StreamImpl;
struct EventImpl;
}  // namespace detail

class Event {
 public:
  Event() = default;  // complete
  // The caller's cudaEvent_t of that GPU, which must outlive every handle; it may be recorded
  // again, and the handle then stands for the latest record.  Throws InvalidArgument for null, and
  // Unsupported as expect_usable() does.
  static Event wrap_cuda(void* event, int index);

  void synchronize() const;  // blocks the host until the recorded work is done
  bool is_complete() const;
  // The time from `start` to this event; both come from record_timed(), or are events of the
  // caller's that measure time.  Waits for both.  It is 0 on the CPU.
  std::chrono::nanoseconds since(const Event& start) const;
  // The cudaEvent_t, valid while a handle lives; nullptr on the CPU and by default.  Foreign code
  // may wait for it and query it, and may not record or destroy it.
  void* native_handle() const;

 private:
  friend class Stream;
  std::shared_ptr<detail::EventImpl> impl_;  // null on CPU
};

class Stream {
 public:
  Stream();  // cpu()
  // With num_threads 0 the setting MOEBIUS_THREADS decides, or the number of CPUs that this process
  // may run on.  Throws InvalidArgument for a negative number, and as setting_int() does.
  static Stream cpu(int num_threads = 0);
  // A new non-blocking stream of the device.  Its last handle may be destroyed while work is under
  // way.  Throws Unsupported as expect_usable() does.
  static Stream cuda(int index);
  // The caller's cudaStream_t of that GPU, which must outlive every handle; null is the legacy
  // default stream, which waits for all blocking streams of the GPU and cannot be captured.
  // Objects that were given the stream keep a handle: a WorkspacePool (which records an event on it
  // when it is destroyed), experts, layers and transports.  Keep a handle for all calls, since
  // calls keep their scratch memory in it (allocator.h).  Throws Unsupported as expect_usable().
  static Stream wrap_cuda(void* stream, int index);

  Device device() const;
  int num_threads() const;  // >= 1; on CUDA 1, for the work that the host does
  Event record() const;
  Event record_timed() const;  // for Event::since(); not allowed while the stream is captured
  // Later work on this stream starts after the event; a CPU stream waits for the event in the call.
  void wait(const Event& event) const;
  void synchronize() const;  // blocks the host until the stream is idle
  // The cudaStream_t, valid while a handle lives; nullptr on the CPU and for the legacy default
  // stream.  Foreign code may enqueue on it, and may not destroy it.
  void* native_handle() const;

 private:
  Event record(bool is_timed) const;
  explicit Stream(std::shared_ptr<detail::StreamImpl> impl) : impl_(std::move(impl)) {}
  friend std::shared_ptr<void> allocate_on(int64_t bytes, const Stream& stream);  // internal
  std::shared_ptr<detail::StreamImpl> impl_;
};

}  // namespace moebius
