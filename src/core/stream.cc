// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// On the CPU the work is done when a call returns, so events hold nothing.
#include "moebius/stream.h"

#include <algorithm>

#include "core/allocate.h"
#include "core/cpu_sets.h"
#include "core/cuda/runtime.h"
#include "core/stream_blocks.h"
#include "moebius/error.h"
#include "moebius/settings.h"

namespace moebius {

namespace detail {

struct StreamImpl {
  Device device;
  int num_threads = 1;
  std::shared_ptr<void> handle;  // cudaStream_t; null on the CPU and for the default stream
  StreamBlocks blocks = {};      // scratch of calls on a GPU
};

struct EventImpl {
  std::shared_ptr<void> handle;  // cudaEvent_t
  std::weak_ptr<StreamImpl> recorded =
      {};  // the stream that it was recorded on; none: the caller's
};

}  // namespace detail

namespace {

// A pointer that owns nothing, because the object belongs to the caller.
std::shared_ptr<void> not_owned(void* object) {
  return {std::shared_ptr<void>(), object};
}

std::shared_ptr<detail::StreamImpl> make_cuda_stream(int index,
                                                     const std::shared_ptr<void>& handle) {
  const Device device = Device::cuda(index);
  return std::make_shared<detail::StreamImpl>(
      detail::StreamImpl{device, 1, handle, StreamBlocks(device, handle)});
}

}  // namespace

Event Event::wrap_cuda(void* event, int index) {
  expect(event != nullptr, "the event to be wrapped is null");
  moebius::cuda::expect_usable(index);
  Event result;
  result.impl_ = std::make_shared<detail::EventImpl>(detail::EventImpl{not_owned(event)});
  return result;
}
void Event::synchronize() const {
  if (impl_) {
    cuda::synchronize_event(impl_->handle.get());
  }
}
bool Event::is_complete() const {
  return !impl_ || cuda::is_event_complete(impl_->handle.get());
}
std::chrono::nanoseconds Event::since(const Event& start) const {
  return impl_ && start.impl_ ? cuda::elapsed(start.native_handle(), native_handle())
                              : std::chrono::nanoseconds(0);
}
void* Event::native_handle() const {
  return impl_ ? impl_->handle.get() : nullptr;
}

Stream::Stream() : Stream(cpu()) {}

Stream Stream::cpu(int num_threads) {
  expect_ge(num_threads, 0, "num_threads");
  if (num_threads == 0) {
    num_threads = static_cast<int>(setting_int("MOEBIUS_THREADS").value_or(num_usable_cpus()));
  }
  return Stream(
      std::make_shared<detail::StreamImpl>(detail::StreamImpl{Device::cpu(), num_threads, {}}));
}

Stream Stream::cuda(int index) {
  return Stream(make_cuda_stream(index, moebius::cuda::make_stream(index)));
}

Stream Stream::wrap_cuda(void* stream, int index) {
  moebius::cuda::expect_usable(index);
  return Stream(make_cuda_stream(index, not_owned(stream)));
}

Device Stream::device() const {
  return impl_->device;
}
int Stream::num_threads() const {
  return impl_->num_threads;
}
Event Stream::record() const {
  return record(/*is_timed=*/false);
}
Event Stream::record_timed() const {
  return record(/*is_timed=*/true);
}
Event Stream::record(bool is_timed) const {
  Event event;
  if (device().is_cuda()) {
    event.impl_ = std::make_shared<detail::EventImpl>(detail::EventImpl{
        moebius::cuda::record_event(native_handle(), device().index, is_timed), impl_});
  }
  return event;
}
void Stream::wait(const Event& event) const {
  if (device().is_cpu()) {
    event.synchronize();
  } else if (event.impl_ && event.impl_->recorded.lock() != impl_) {  // what it has comes in order
    moebius::cuda::wait_event(native_handle(), device().index, event.native_handle());
  }
}
void Stream::synchronize() const {
  if (device().is_cuda()) {
    moebius::cuda::synchronize_stream(native_handle(), device().index);
  }
}
void* Stream::native_handle() const {
  return impl_->handle.get();
}

std::shared_ptr<void> allocate_on(int64_t bytes, const Stream& stream) {
  const int index = stream.device().index;
  if (cuda::capture_id(stream.native_handle(), index) != 0) {
    return cuda::allocate_in_graph(bytes, stream.native_handle(), index);
  }
  return stream.impl_->blocks.take(bytes);
}

}  // namespace moebius
