// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// StreamBlocks: scratch memory of a GPU that a stream keeps for its calls.  Calls of one stream run
// one after another, so a block may go to the next call while work on it is still under way.
// Thread-safety: any thread may call any function.
#pragma once

#include <cstdint>
#include <memory>

#include "moebius/device.h"

namespace moebius {

class StreamBlocks {
 public:
  StreamBlocks() = default;  // of the CPU, which needs none
  StreamBlocks(Device device, std::shared_ptr<void> stream);

  // A block of at least `bytes`.  It is free again when the last handle is gone, which keeps the
  // stream and all of this alive.
  std::shared_ptr<void> take(int64_t bytes) const;

  // Gives back the free blocks of all streams of a device, each in the order of its stream.
  static void trim_all(Device device);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace moebius
