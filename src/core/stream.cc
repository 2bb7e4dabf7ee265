// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// CPU streams.  Work is done when a call returns, so events carry nothing.
#include "moebius/stream.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "moebius/error.h"
#include "moebius/settings.h"

namespace moebius {

namespace detail {

struct StreamImpl {
  Device device;
  int num_threads = 1;
};

struct EventImpl {};

}  // namespace detail

namespace {

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    return std::max(1, CPU_COUNT(&set));
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

void Event::synchronize() const {}
bool Event::is_complete() const {
  return true;
}
void* Event::native_handle() const {
  return nullptr;
}

Stream::Stream() : Stream(cpu()) {}

Stream Stream::cpu(int num_threads) {
  expect_ge(num_threads, 0, "num_threads");
  if (num_threads == 0) {
    num_threads = static_cast<int>(setting_int("MOEBIUS_THREADS", 1, 4096).value_or(usable_cpus()));
  }
  return Stream(
      std::make_shared<detail::StreamImpl>(detail::StreamImpl{Device::cpu(), num_threads}));
}

Device Stream::device() const {
  return impl_->device;
}
int Stream::num_threads() const {
  return impl_->num_threads;
}
Event Stream::record() const {
  return {};
}
void Stream::wait(const Event&) const {}
void Stream::synchronize() const {}
void* Stream::native_handle() const {
  return nullptr;
}

}  // namespace moebius
