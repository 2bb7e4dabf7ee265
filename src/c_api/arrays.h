// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Arrays of the C API: tensors whose memory the library or a producer owns.
#pragma once

#include <string_view>

#include "c_api/handles.h"
#include "moebius/tensor.h"

namespace moebius::c_api {

struct ArrayObject : Object {
  static constexpr std::string_view kKind = "array";
  using Handle = moebius_array;

  explicit ArrayObject(Tensor t) : tensor(std::move(t)) {}
  Tensor tensor;
};

// A handle of its own on the tensor; null for an undefined one.
moebius_array make_array(const Tensor& tensor);

}  // namespace moebius::c_api
