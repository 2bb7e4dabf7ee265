// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Overlap: how much of a call's communication is hidden behind its computing, of one rank.
#pragma once

#include <chrono>
#include <span>

#include "moebius/profile.h"

namespace moebius {

struct Overlap {
  // While rows are in flight, whatever their number: the union of the intervals.  A transfer begins
  // with its send, so copies made by the host count, and ends when its rows are known to be here:
  // when the host has looked (on a GPU: when the kernel that receives has ended).  What came
  // earlier, unseen, counts until then.
  std::chrono::nanoseconds travel{0};
  // The part of it in which experts, shared experts or the router compute: on a GPU by its streams,
  // on the CPU by the host.  Quantizing, copying rows and waiting hide nothing; but
  // a GEMM that awaits rows in waves counts as computing all the while.
  std::chrono::nanoseconds hidden{0};
  std::chrono::nanoseconds waited{0};  // for other ranks, on the host, at any time

  double hidden_share() const {
    return travel.count() > 0
               ? static_cast<double>(hidden.count()) / static_cast<double>(travel.count())
               : 0.0;
  }
};

// Of the intervals of one call, in any order.
Overlap measure_overlap(std::span<const Profile::Interval> intervals);

}  // namespace moebius
