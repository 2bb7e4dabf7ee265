// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tensors that a caller gives to an object which keeps their values, and later ones that replace
// these values.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "moebius/error.h"
#include "moebius/tensor.h"

namespace moebius {

// The tensor itself where nobody else can reach its elements or where it is undefined, else a copy
// on its device.
inline Tensor own(Tensor tensor) {
  return !tensor || tensor.is_exclusive() ? tensor : tensor.clone();
}

// A handle with the dtype, shape, device and address of a tensor that keeps nothing alive.
inline Tensor facts_of(const Tensor& tensor) {
  return tensor ? Tensor::borrow(tensor.raw(), tensor.shape(), tensor.dtype(), tensor.device())
                : Tensor();
}

// Throws InvalidArgument, naming both values, unless the tensor can take the place of `old`.
inline void expect_like(const Tensor& tensor, const Tensor& old, std::string_view what) {
  expect(tensor.defined() == old.defined(), [&] {
    return fmt::format("{} is {}, expected it {} as of the weights that are replaced", what,
                       tensor ? "given" : "missing", old ? "given" : "missing");
  });
  if (tensor) {
    expect_dtype(tensor, old.dtype(), what);
    expect_shape(tensor, old.shape(), what);
  }
}

}  // namespace moebius
