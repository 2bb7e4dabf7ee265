// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Scratch hands out arrays from one block of memory.  The same sequence of take() calls without a
// block measures how large the block must be, so a layout is written once.
// Ownership: the caller owns the block, which must outlive the arrays.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moebius/tensor.h"

namespace moebius {

class Scratch {
 public:
  static constexpr int64_t kAlignment = 256;

  Scratch() = default;  // measures
  explicit Scratch(std::byte* block, Device device = {}) : block_(block), device_(device) {}

  template <typename T>
  T* take(int64_t n) {
    return reinterpret_cast<T*>(take_bytes(n * static_cast<int64_t>(sizeof(T))));
  }
  // The tensor is undefined while measuring.
  Tensor take(const Shape& shape, DType dtype) {
    std::byte* data = take_bytes(shape.numel() * bits(dtype) / 8);
    return data != nullptr ? Tensor::borrow(data, shape, dtype, device_) : Tensor{};
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* take_bytes(int64_t n) {
    std::byte* data = block_ != nullptr ? block_ + bytes_ : nullptr;
    bytes_ += (n + kAlignment - 1) / kAlignment * kAlignment;
    return data;
  }

  std::byte* block_ = nullptr;
  Device device_;
  int64_t bytes_ = 0;
};

}  // namespace moebius
