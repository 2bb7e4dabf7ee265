// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Random tensors at memory speed: 16 random bits choose one of 65536 prepared values, the quantiles
// of the wanted distribution in the wanted format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "moebius/dtype.h"
#include "moebius/stream.h"

namespace moebius::checkpoint {

class ValueTable {
 public:
  static constexpr int64_t kSize = 65536;

  // element(x) stores the value for the standard normal quantile x.  dtype: f32, bf16 or one byte.
  static ValueTable normal(DType dtype, const std::function<float(float x)>& element);
  // For u in (0, 1), evenly spaced.
  static ValueTable uniform(DType dtype, const std::function<float(float u)>& element);
  // Two independent normal 4-bit codes per byte.
  static ValueTable normal_nibbles(const std::function<uint8_t(float x)>& code);

  // Elements [first, first + size) of the tensor with this seed; the result does not depend on the
  // number of threads or on how a tensor is cut into calls.  REQUIRES: first % 4 == 0.
  void fill(std::span<std::byte> out, int64_t first, uint64_t seed, const Stream& stream) const;
  int64_t element_bytes() const { return element_bytes_; }

 private:
  // element(i) is the table's value i.
  ValueTable(DType dtype, const std::function<float(int64_t i)>& element);

  std::vector<std::byte> values_;
  int64_t element_bytes_;
};

// A seed for one of many tensors.
uint64_t tensor_seed(uint64_t seed, std::string_view tensor);

}  // namespace moebius::checkpoint
