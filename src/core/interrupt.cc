// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/interrupt.h"

#include <utility>

#include "core/caller_function.h"

namespace moebius {

namespace {

CallerFunction<InterruptCheck>& chosen() {
  // Leaked: threads may wait while the process ends.
  static auto& instance = *new CallerFunction<InterruptCheck>;
  return instance;
}

}  // namespace

std::atomic<bool> InterruptWatch::is_set_{false};

bool InterruptWatch::ask(std::chrono::steady_clock::time_point now) {
  if (now < next_) {
    return false;
  }
  next_ = now + kPause;
  bool wants = false;
  try {
    chosen().call([&](const InterruptCheck& check) { wants = check(); });
  } catch (...) {
    return true;
  }
  return wants;
}

void set_interrupt_check(InterruptCheck check) {
  chosen().replace(std::move(check), &InterruptWatch::is_set_);
}

}  // namespace moebius
