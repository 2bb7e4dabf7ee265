// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// L2Flush: takes everything out of a GPU's L2 cache.
// ColdGpu: measures by events how long a GPU takes for work on a stream when none of its data is in
// that cache.
#pragma once

#include <functional>

#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::bench {

class L2Flush {
 public:
  L2Flush() = default;
  explicit L2Flush(Device device);
  // Enqueues it; it may be captured.
  void flush(const Stream& stream) const;

 private:
  Tensor bytes_;  // more than any L2 cache holds
};

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
  L2Flush l2_;
};

}  // namespace moebius::bench
