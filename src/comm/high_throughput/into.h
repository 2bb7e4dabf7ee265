// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// DispatchRoom: the caller's memory for the result of a dispatch (DispatchInput::into).  Rows
// arrive in banks, which ranks share, and are copied from there.
#pragma once

#include <cstdint>
#include <optional>

#include "moebius/dispatch.h"

namespace moebius {

class DispatchRoom {
 public:
  DispatchRoom(const DispatchInput& input, Device device);

  // Copies the rows of the output in the order of the stream, and replaces its tensors and event.
  // Throws InvalidArgument, on every rank, when the rank with most rows has no room for them.
  void move_in(DispatchOutput& output, const Stream& stream) const;

 private:
  DispatchInto into_;
  int64_t rows_ = 0;
};

// Nullopt where the caller gives nothing.  Throws InvalidArgument for tensors that do not fit.
std::optional<DispatchRoom> make_dispatch_room(const DispatchInput& input, Device device);

}  // namespace moebius
