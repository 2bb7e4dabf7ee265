// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// SideStream: a stream for work of a call that runs beside the call's own stream.  There is one for
// each use, GPU and thread, however many layers there are, and none where too many ranks share a
// GPU: there the work runs on the call's stream.
// Why so few: work on it may wait for other ranks, and if there are more streams than hardware
// queues, streams wait for each other (comm/group/shared_device.h).
#pragma once

#include "moebius/stream.h"

namespace moebius {

class SideStream {
 public:
  enum class Use { kBeside, kTransfers, kRecords };

  // is_apart: whether there is such a stream (PrepareFinalizeTraits::has_streams_beside).
  SideStream(Use use, bool is_apart) : use_(use), is_apart_(is_apart) {}

  // The stream beside that of a call, which is on a GPU.  It belongs to the calling thread.
  const Stream& of(const Stream& call);
  // Makes `stream` wait for all work that this stream has been given, if both are on one device.
  void join(const Stream& stream) const;

 private:
  Use use_;
  bool is_apart_;
  Stream stream_;  // a stream of the CPU until of() is called
};

}  // namespace moebius
