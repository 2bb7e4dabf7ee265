// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// AwakeDeadline: a deadline of a thread that looks at it again and again.  Where more than half of
// the timeout lies between two looks, and more than such a thread ever sleeps, the process was
// stopped (by a signal, or with its machine).  It has not waited meanwhile, and there may be news
// for it, so the whole timeout begins anew.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "moebius/deadline.h"

namespace moebius {

class AwakeDeadline {
 public:
  explicit AwakeDeadline(std::chrono::milliseconds timeout)
      : timeout_(timeout), deadline_(Deadline::after(timeout)) {}

  bool expired() {
    const auto now = Deadline::Clock::now();
    if (now - std::exchange(last_look_, now) > std::max(timeout_ / 2, kShortestStop)) {
      deadline_ = Deadline::after(timeout_);
    }
    return deadline_.expired();
  }

 private:
  static constexpr std::chrono::milliseconds kShortestStop{100};

  std::chrono::milliseconds timeout_;
  Deadline deadline_;
  Deadline::Clock::time_point last_look_ = Deadline::Clock::now();
};

}  // namespace moebius
