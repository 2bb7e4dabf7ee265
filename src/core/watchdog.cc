// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/watchdog.h"

#include <string>
#include <utility>

#include "core/awake_deadline.h"
#include "core/start_thread.h"

namespace moebius {

Watchdog::Watchdog(std::chrono::milliseconds timeout, std::function<void()> on_expiry)
    : on_expiry_(std::move(on_expiry)),
      thread_(start_thread([] { return std::string("a deadline"); },
                           [this, timeout] { watch(timeout); })) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::watch(std::chrono::milliseconds timeout) {
  const auto pause = timeout / 8;
  std::unique_lock lock(mutex_);
  AwakeDeadline deadline(timeout);
  while (!deadline.expired()) {
    if (changed_.wait_for(lock, pause, [this] { return is_over_; })) {
      return;
    }
  }
  lock.unlock();
  on_expiry_();
}

}  // namespace moebius
