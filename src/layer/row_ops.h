// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Element-wise operations on rows of f32, bf16 and f16: what stands between the stages of a layer.
// All compute in f32 and round once; threaded, with the same bits for any number of threads.
#pragma once

#include <type_traits>

#include "moebius/error.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius {

bool is_hidden_dtype(DType dtype);  // f32, bf16 or f16
// Throws InvalidArgument naming `what` and the dtype.
void expect_hidden_dtype(const Tensor& tensor,
                         std::string_view what,
                         Where where = Where::current());

// fn(T{}) with T = float, BFloat16 or Float16.  REQUIRES: is_hidden_dtype(dtype).
template <typename Fn>
void visit_hidden_dtype(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kF32:
      return fn(float{});
    case DType::kBF16:
      return fn(BFloat16{});
    default:
      assert(dtype == DType::kF16);
      return fn(Float16{});
  }
}

// out = in; shapes equal, dtypes any two.
void copy_rows(const Tensor& in, const Tensor& out, const Stream& stream);
// out = a + b; a and b of one dtype.  out may be a or b.
void add_rows(const Tensor& a, const Tensor& b, const Tensor& out, const Stream& stream);
// out[t] = x[t] * dtype(weights[t]); x, out [T, H] of one dtype, weights f32 [T, 1].
void scale_rows(const Tensor& x, const Tensor& weights, const Tensor& out, const Stream& stream);
// out[t] *= sigmoid(gate . x[t]), the dot product in double; x, out [T, H], gate [1, H].
void gate_rows(const Tensor& x, const Tensor& gate, const Tensor& out, const Stream& stream);

}  // namespace moebius
