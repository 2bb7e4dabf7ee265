// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// GpuBarrier: a kernel that ends on the streams of all ranks at nearly the same time.  What is
// timed after it does not depend on when each rank was launched.
#pragma once

#include <chrono>
#include <memory>

#include "moebius/group.h"

namespace moebius::bench {

class GpuBarrier {
 public:
  explicit GpuBarrier(Group& group);  // collective
  // Enqueues the kernel; a CUDA graph may record it.  Once all ranks have met they wait `lead`, in
  // which time hosts can enqueue what comes next, and then meet again.
  // The kernel gives up after the group's timeout, so that it does not wait forever for a missing
  // rank.  The time that is measured then is wrong, but the transfer that follows fails and names
  // the rank.
  void launch(const Stream& stream, std::chrono::nanoseconds lead);

 private:
  Group& group_;
  // Each rank's window holds a signal of every peer, then the number of times that this rank has
  // met the others.
  std::unique_ptr<Window> window_;
};

}  // namespace moebius::bench
