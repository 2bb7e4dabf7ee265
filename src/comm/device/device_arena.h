// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// DeviceArena: device memory for what calls leave behind, used again when the last handle on it has
// gone.  Why not an allocation each: those that use it are enqueued one after another, so a block
// may be handed out while work on it is still under way, and nothing is called that could wait.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "moebius/device.h"
#include "moebius/tensor.h"

namespace moebius::comm {

class DeviceArena {
 public:
  explicit DeviceArena(Device device) : device_(device) {}

  // A block of at least `bytes`, 256-byte aligned, taken until every copy of the tensor and of what
  // shares its memory is gone.
  Tensor take(int64_t bytes);
  Tensor take(const Shape& shape, DType dtype);

 private:
  struct Block {
    Tensor memory;
    std::weak_ptr<void> lease;
  };
  Device device_;
  std::vector<Block> blocks_;
};

// The values as i32 [n] on the device, there when the call returns.
Tensor upload(std::span<const int32_t> values, Device device);

}  // namespace moebius::comm
