// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/watchdog.h"

#include <string>
#include <utility>

#include "core/start_thread.h"
#include "moebius/deadline.h"

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
  // Looks at the clock this often, to notice that the process was stopped.
  const auto pause = timeout / 8;
  std::unique_lock lock(mutex_);
  Deadline deadline = Deadline::after(timeout);
  auto last_look = Deadline::Clock::now();
  while (!deadline.expired()) {
    if (changed_.wait_for(lock, pause, [this] { return is_over_; })) {
      return;
    }
    const auto now = Deadline::Clock::now();
    if (now - std::exchange(last_look, now) > timeout / 2) {
      deadline = Deadline::after(timeout);
    }
  }
  lock.unlock();
  on_expiry_();
}

}  // namespace moebius
