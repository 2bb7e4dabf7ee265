// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// GpuBarrier: a kernel that ends on all ranks' streams at nearly the same time, so that what is
// timed after it does not count how late a rank was launched.
#pragma once

#include <chrono>
#include <memory>

#include "moebius/group.h"

namespace moebius::bench {

class GpuBarrier {
 public:
  explicit GpuBarrier(Group& group);  // collective
  // Enqueues it; a CUDA graph may hold it.  All ranks wait `lead` once they have met, in which
  // hosts can enqueue what comes next, and meet again.
  // Gives up after the group's timeout, so that a missing rank leaves no kernel spinning; what is
  // timed then is wrong, and the transfer that follows says who is missing.
  void launch(const Stream& stream, std::chrono::nanoseconds lead);

 private:
  Group& group_;
  // Of each rank: a signal of every peer, then how often this rank has met the others.
  std::unique_ptr<Window> window_;
};

}  // namespace moebius::bench
