// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Watchdog: a deadline for a call that takes none.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace moebius {

class Watchdog {
 public:
  // Calls on_expiry() on a thread of its own, unless it is destroyed within `timeout`, which is
  // that of an AwakeDeadline.  Throws Error where the thread cannot be started.
  Watchdog(std::chrono::milliseconds timeout, std::function<void()> on_expiry);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch(std::chrono::milliseconds timeout);

  const std::function<void()> on_expiry_;
  std::mutex mutex_;  // guards is_over_
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace moebius
