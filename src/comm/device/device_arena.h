// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// DeviceArena: memory of a device for what calls leave behind.  A block is used again once the last
// handle on it is gone, so that calls which repeat allocate nothing.  Why it does not allocate each
// time: the users of a block are enqueued one after another, so a block may be handed out while
// work on it is still under way, and no call of the CUDA runtime is made that could wait.
// A launch of a graph writes where its capture did.  So a block that a captured call has taken goes
// to captured calls only from then on, and no result of another call is in the way of a launch.
// Captured calls share blocks, since launches of graphs are ordered as calls are.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "moebius/device.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::comm {

// Whether a call is launched now, or captured in a graph.
enum class Launch : uint8_t { kNow, kCaptured };
Launch launch_on(const Stream& stream);

class DeviceArena {
 public:
  explicit DeviceArena(Device device) : device_(device) {}

  // Returns a block of at least `bytes`, 256-byte aligned.  It stays taken until every copy of the
  // tensor, and every tensor that shares its memory, is gone.
  Tensor take(int64_t bytes, Launch launch = Launch::kNow);
  Tensor take(const Shape& shape, DType dtype, Launch launch = Launch::kNow);
  // Gives back the blocks that nobody has, after the present work of the stream.
  void trim(const std::optional<Stream>& last_stream);
  int64_t bytes() const;  // of all blocks

 private:
  struct Block {
    Tensor memory;
    std::weak_ptr<void> lease;
    bool is_of_graphs = false;
  };
  Device device_;
  std::vector<Block> blocks_;
};

// Copies the values to the device as i32 [n]; the copy is complete when the call returns.
Tensor upload(std::span<const int32_t> values, Device device);

}  // namespace moebius::comm
