// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ColdGpu: how long a GPU takes for what a stream is given, by events, with nothing of it in the L2
// cache.
#pragma once

#include <functional>

#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::bench {

class ColdGpu {
 public:
  explicit ColdGpu(int device_index = 0);

  const Stream& stream() const { return stream_; }
  Device device() const { return stream_.device(); }
  Tensor empty(const Shape& shape, DType dtype) const {
    return Tensor::empty(shape, dtype, device());
  }
  Tensor take(const Tensor& tensor) const;  // a copy on the GPU; undefined stays undefined

  // Enqueues bytes of 0xff, NaN in every float type.
  void poison(const Tensor& tensor) const;
  // Seconds of what `work` enqueues, which should be little to enqueue: a kernel or a Graph.
  double seconds(const std::function<void()>& work) const;

 private:
  Stream stream_;
  Tensor flush_;  // larger than any L2 cache
};

}  // namespace moebius::bench
