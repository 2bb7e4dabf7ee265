// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/interrupt.h"

#include <memory>
#include <mutex>
#include <utility>

namespace moebius {

namespace {

struct Chosen {
  std::mutex mutex;
  std::shared_ptr<const InterruptCheck> check;
};

Chosen& chosen() {
  static Chosen& instance = *new Chosen;  // leaked: threads may wait while the process ends
  return instance;
}

}  // namespace

std::atomic<bool> InterruptWatch::is_set_{false};

bool InterruptWatch::ask(std::chrono::steady_clock::time_point now) {
  if (now < next_) {
    return false;
  }
  next_ = now + kPause;
  std::shared_ptr<const InterruptCheck> check;
  {
    const std::lock_guard lock(chosen().mutex);
    check = chosen().check;
  }
  try {
    return check != nullptr && (*check)();
  } catch (...) {
    return true;
  }
}

void set_interrupt_check(InterruptCheck check) {
  std::shared_ptr<const InterruptCheck> wanted;
  if (check) {
    wanted = std::make_shared<const InterruptCheck>(std::move(check));
  }
  const std::lock_guard lock(chosen().mutex);
  chosen().check = std::move(wanted);
  InterruptWatch::is_set_.store(chosen().check != nullptr, std::memory_order_relaxed);
}

}  // namespace moebius
