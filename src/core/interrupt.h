// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// InterruptWatch: what a wait asks again and again whether the caller wants it to end.
#pragma once

#include <atomic>
#include <chrono>

#include "moebius/interrupt.h"

namespace moebius {

class InterruptWatch {
 public:
  // Asks the caller's function at most once in kPause, and not at once.
  bool wants_end() {
    return is_set_.load(std::memory_order_relaxed) && ask(std::chrono::steady_clock::now());
  }

 private:
  friend void set_interrupt_check(InterruptCheck check);
  static constexpr std::chrono::milliseconds kPause{50};
  static std::atomic<bool> is_set_;

  bool ask(std::chrono::steady_clock::time_point now);

  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + kPause;
};

}  // namespace moebius
