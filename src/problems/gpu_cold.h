// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ColdGpu: measures by events how long a GPU takes for work on a stream when none of its data is in
// the L2 cache.
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
  Tensor take(const Tensor& tensor) const;  // a copy on the GPU, or undefined if that is undefined

  // Enqueues filling the tensor with bytes of 0xff, which are NaN in every float type.
  void poison(const Tensor& tensor) const;
  // Seconds that the GPU takes for what `work` enqueues.  Enqueuing should be quick, as that of a
  // kernel or a Graph is.
  double seconds(const std::function<void()>& work) const;

 private:
  Stream stream_;
  Tensor flush_;  // larger than any L2 cache
};

}  // namespace moebius::bench
