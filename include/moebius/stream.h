// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Stream and Event: the order of work on a device.
//
// Everything that launches work takes a Stream.  On CUDA both wrap the runtime's objects.  On the
// CPU work is done when the call returns, so events are complete when recorded; what a CPU stream
// carries is the number of threads a call may use, as an SM count would be on a GPU.
// Ownership: handles; copies share the underlying object.  Thread-safety: one thread at a time.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "moebius/device.h"

namespace moebius {

namespace detail {
struct StreamImpl;
struct EventImpl;
}  // namespace detail

class Event {
 public:
  Event() = default;         // complete
  void synchronize() const;  // blocks the host until the recorded work is done
  bool is_complete() const;
  // Time from `start`, both of record_timed(); waits for them.  0 on the CPU.
  std::chrono::nanoseconds since(const Event& start) const;
  void* native_handle() const;  // cudaEvent_t, nullptr when complete from the start (CPU)

 private:
  friend class Stream;
  std::shared_ptr<detail::EventImpl> impl_;  // null on CPU
};

class Stream {
 public:
  Stream();  // cpu()
  // num_threads 0: setting MOEBIUS_THREADS, else the CPUs this process may run on.
  static Stream cpu(int num_threads = 0);
  // A new non-blocking stream of the device.  Its last handle may go while work is under way.
  // Throws Unsupported as expect_usable() does.
  static Stream cuda(int index);
  // The caller's cudaStream_t, which must outlive every handle.  What was given the stream keeps
  // one: a WorkspacePool (which records on it when it goes), experts, layers and transports.
  static Stream wrap_cuda(void* stream, int index);

  Device device() const;
  int num_threads() const;  // >= 1; on CUDA 1, for what the host does beside it
  Event record() const;
  Event record_timed() const;  // the same, for Event::since(); not while the stream is captured
  // Later work on this stream starts after the event; a CPU stream waits for it here.
  void wait(const Event& event) const;
  void synchronize() const;     // blocks the host until the stream is idle
  void* native_handle() const;  // cudaStream_t, nullptr on CPU

 private:
  Event record(bool is_timed) const;
  explicit Stream(std::shared_ptr<detail::StreamImpl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<detail::StreamImpl> impl_;
};

}  // namespace moebius
