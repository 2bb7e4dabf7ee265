// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Place: the device and stream of an implementation under test, with copies of operands to and from
// it.
#pragma once

#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::testing {

struct Place {
  Place() = default;
  explicit Place(DeviceType type)
      : stream(type == DeviceType::kCpu ? Stream::cpu() : Stream::cuda(0)) {}
  // The place of a rank: a single thread, or a stream of its GPU.
  explicit Place(Device device)
      : stream(device.is_cpu() ? Stream::cpu(1) : Stream::cuda(device.index)) {}
  explicit Place(const Stream& on) : stream(on) {}

  Device device() const { return stream.device(); }

  // Undefined tensors stay undefined.
  Tensor take(const Tensor& tensor) const {
    if (!tensor || tensor.device() == device()) {
      return tensor;
    }
    const Tensor there = to_device(tensor, device(), stream);
    stream.synchronize();  // the caller may free or change its tensor afterwards
    return there;
  }
  Tensor bring(const Tensor& tensor) const {
    return tensor ? to_device(tensor, Device::cpu(), stream) : tensor;
  }

  Stream stream;
};

}  // namespace moebius::testing
