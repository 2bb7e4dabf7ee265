// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A device's stream for work of a call that goes on beside its own stream's: one for each use, GPU
// and thread, whatever the number of layers.  Why not one per layer: its work may wait for other
// ranks, and streams beyond the hardware's queues wait for each other (comm/group/shared_device.h).
#pragma once

#include "moebius/stream.h"

namespace moebius {

class SideStream {
 public:
  enum class Use { kBeside, kTransfers };

  explicit SideStream(Use use) : use_(use) {}

  // Of that device, which enqueues; the thread's that asks first.
  const Stream& on(Device device);
  // What it has been given on that device comes before what `stream` is given from now on.
  void join(const Stream& stream) const;

 private:
  Use use_;
  Stream stream_;  // a CPU's until it is needed
};

}  // namespace moebius
