// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Overlap: how much of a rank's communication in a call is hidden behind its computing.
#pragma once

#include <chrono>
#include <span>

#include "moebius/profile.h"

namespace moebius {

struct Overlap {
  // The time in which at least one transfer is in flight: the union of the intervals.  A transfer
  // begins with its send, so copies that the host makes for it count.  It ends when its rows are
  // known to be here: when the host has looked, or on a GPU when the receiving kernel has ended,
  // even if they arrived earlier.
  std::chrono::nanoseconds travel{0};
  // The part of `travel` in which experts, shared experts or the router compute: on a GPU by its
  // streams, on the CPU by the host.  Quantizing, copying rows and waiting hide nothing.  A GEMM
  // that awaits rows in waves counts as computing all the while.
  std::chrono::nanoseconds hidden{0};
  std::chrono::nanoseconds waited{0};  // the host's waits for other ranks, at any time of the call

  double hidden_share() const {
    return travel.count() > 0
               ? static_cast<double>(hidden.count()) / static_cast<double>(travel.count())
               : 0.0;
  }
};

// `intervals` are those of one call, in any order.
Overlap measure_overlap(std::span<const Profile::Interval> intervals);

}  // namespace moebius
