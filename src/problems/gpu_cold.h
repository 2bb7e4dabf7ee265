// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// L2Flush: takes everything out of a GPU's L2 cache.
// ColdGpu: measures by events how long a GPU takes for work on a stream when none of its data is in
// that cache.
#pragma once

#include <functional>
#include <string_view>

#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::bench {

// What L2 is filled with: lines that were written, which must go to memory before others take their
// place, or lines that were read, like most lines that a model's other layers leave.
enum class L2Lines { kWritten, kRead };
inline L2Lines l2_lines_of(std::string_view name) {
  return name == "read" ? L2Lines::kRead : L2Lines::kWritten;
}

class L2Flush {
 public:
  L2Flush() = default;
  L2Flush(Device device, L2Lines lines);
  // Enqueues it; it may be captured.
  void flush(const Stream& stream) const;

 private:
  L2Lines lines_ = L2Lines::kWritten;
  Tensor zeros_;  // more than any L2 cache holds
};

class ColdGpu {
 public:
  explicit ColdGpu(L2Lines lines = L2Lines::kWritten, int device_index = 0);

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
