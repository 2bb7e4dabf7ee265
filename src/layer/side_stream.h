// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// SideStream: a stream for work of a call that runs beside the call's own stream.  There is one for
// each use, GPU and thread, however many layers there are.
// Why not one per layer: work on it may wait for other ranks, and if there are more streams than
// hardware queues, streams wait for each other (comm/group/shared_device.h).
#pragma once

#include "moebius/stream.h"

namespace moebius {

class SideStream {
 public:
  enum class Use { kBeside, kTransfers };

  explicit SideStream(Use use) : use_(use) {}

  // The stream on that device, which must be a GPU.  It belongs to the thread that calls first.
  const Stream& on(Device device);
  // Makes `stream` wait for all work that this stream has been given, if both are on one device.
  void join(const Stream& stream) const;

 private:
  Use use_;
  Stream stream_;  // a stream of the CPU until on() is called
};

}  // namespace moebius
