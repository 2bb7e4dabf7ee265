// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// DispatchRoom: the caller's memory for the result of a dispatch (DispatchInput::into, and that of
// CachedDispatchInput).  Rows arrive in banks, which ranks share, and are copied from there.
#pragma once

#include <cstdint>
#include <optional>

#include "moebius/dispatch.h"

namespace moebius {

class DispatchRoom {
 public:
  // `like` says what the tensors of `into` are for: payloads, ids and weights.
  DispatchRoom(DispatchInto into, const DispatchInto& like, Device device);

  int64_t rows() const { return rows_; }
  // Throws InvalidArgument, on every rank, when the rank with most rows has no room for them.
  void expect_room_for(int64_t most_rows) const;
  // Copies the rows of the output in the order of the stream, and replaces its tensors and event.
  void move_in(DispatchOutput& output, const Stream& stream) const;

 private:
  DispatchInto into_;
  int64_t rows_ = 0;
};

// Nullopt where the caller gives nothing.  Throws InvalidArgument for tensors that do not fit.
std::optional<DispatchRoom> make_dispatch_room(const DispatchInput& input, Device device);
std::optional<DispatchRoom> make_dispatch_room(const CachedDispatchInput& input, Device device);

}  // namespace moebius
