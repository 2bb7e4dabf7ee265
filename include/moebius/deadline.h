// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Deadline: the point in time after which a wait gives up.  Every wait has one.
// Thread-safety: a Deadline is a constant value.
#pragma once

#include <chrono>

#include "moebius/api.h"

namespace moebius MOEBIUS_API {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // The longest timeout that a setting or option may ask for.
  static constexpr std::chrono::hours kMaxTimeout{24};

  // Any duration is allowed; one that the clock cannot count becomes a hundred years.
  template <typename Rep, typename Period>
  static Deadline after(std::chrono::duration<Rep, Period> duration) {
    constexpr std::chrono::hours kNever{24 * 365 * 100};
    using Seconds = std::chrono::duration<double>;  // can hold any duration
    if (Seconds(duration) > Seconds(kNever)) {
      return Deadline(Clock::now() + kNever);
    }
    return Deadline(Clock::now() + std::chrono::duration_cast<Clock::duration>(duration));
  }
  // MOEBIUS_TIMEOUT_MS from now (default 60 s).  Throws as setting_int() does.
  static Deadline from_settings();

  bool expired() const { return Clock::now() >= at_; }
  std::chrono::nanoseconds remaining() const {
    const auto left = at_ - Clock::now();
    return left.count() > 0 ? left : Clock::duration::zero();
  }
  Clock::time_point time_point() const { return at_; }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace moebius
