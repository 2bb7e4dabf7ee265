// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Fills tensors with random values at memory speed: 16 random bits choose one of 65536 prepared
// values, which are quantiles of the wanted distribution in the wanted format.
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

  // element(x) is the value for the standard normal quantile x.  REQUIRES: dtype has 1, 2 or 4
  // bytes.
  static ValueTable normal(DType dtype, const std::function<float(float x)>& element);
  // element(u) is the value for u in (0, 1), evenly spaced.
  static ValueTable uniform(DType dtype, const std::function<float(float u)>& element);
  // Every byte holds two independent normal 4-bit codes, code(x) for the quantile x.
  static ValueTable normal_nibbles(const std::function<uint8_t(float x)>& code);

  // Fills `out` with the elements of a tensor from `first` on.  Equal seeds give equal tensors,
  // whatever the number of threads and however a tensor is cut into calls.
  // REQUIRES: first % 4 == 0.
  void fill(std::span<std::byte> out, int64_t first, uint64_t seed, const Stream& stream) const;
  int64_t element_bytes() const { return element_bytes_; }

 private:
  // element(i) is the table's value i.
  ValueTable(DType dtype, const std::function<float(int64_t i)>& element);

  std::vector<std::byte> values_;
  int64_t element_bytes_;
};

// The seed of one of many tensors, from the seed of all.
uint64_t tensor_seed(uint64_t seed, std::string_view tensor);

}  // namespace moebius::checkpoint
