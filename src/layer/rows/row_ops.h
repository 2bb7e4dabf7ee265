// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Element-wise operations on rows of f32, bf16 and f16, on ids and on counts.  They connect the
// stages of a layer.  All compute in f32 and round once, and give the same bits for any number of
// threads and on a GPU, where the host does not wait.  Operands are on the stream's device.
#pragma once

#include <type_traits>

#include "moebius/error.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius {

struct Quantized;

// Throws InvalidArgument, naming `what` and the dtype, unless tensor is f32, bf16 or f16.
void expect_hidden_dtype(const Tensor& tensor,
                         std::string_view what,
                         Where where = Where::current());

// Calls fn(T{}) with T = float, BFloat16 or Float16.  REQUIRES: is_float(dtype).
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

// out = in.  Shapes are equal; dtypes may differ.
void copy_rows(const Tensor& in, const Tensor& out, const Stream& stream);
// out = a + b.  a and b have one dtype, and out may be a or b.
void add_rows(const Tensor& a, const Tensor& b, const Tensor& out, const Stream& stream);
// out[t] = x[t] * dtype(weights[t]).  x and out [T, H] have one dtype; weights f32 [T, 1].
void scale_rows(const Tensor& x, const Tensor& weights, const Tensor& out, const Stream& stream);
// Sets every element of an i32 or an f32 tensor to value.
void fill(const Tensor& tensor, int32_t value, const Stream& stream);
void fill(const Tensor& tensor, float value, const Stream& stream);
// The same with value f32 [1].
void fill(const Tensor& tensor, const Tensor& value, const Stream& stream);
// Sets the rows from *num_rows (i32 [1]) on to zero.  rows [N, H], with elements of 2 or 4 bytes.
void clear_rows_after(const Tensor& rows, const Tensor& num_rows, const Stream& stream);
// Row r of joined [M, n + 4] = row r of q.scale [M, n], which has one byte each, and then the bytes
// of q.global_scale[r], f32 [M].
void join_row_scales(const Quantized& q, const Tensor& joined, const Stream& stream);

// local i32 [..] = expert_map[ids], or -1 for ids that are masked or not in the map.
void map_ids(const Tensor& ids,
             const Tensor& expert_map,
             const Tensor& local,
             const Stream& stream);
// total i64 [1] += the number of ids that are not masked.
void count_selections(const Tensor& ids, const Tensor& total, const Stream& stream);
// to i32 [n] = from.
void copy_counts(const Tensor& from, const Tensor& to, const Stream& stream);
// totals i64 [n] += counts i32 [n].
void add_counts(const Tensor& counts, const Tensor& totals, const Stream& stream);
// out[t] *= sigmoid(gate . x[t]), computed in double until the factor is rounded.  x and out [T,
// H], gate [1, H].  The dot product is kGateLanes partial sums: sum l is over the columns l, l +
// kGateLanes, and so on.  They are then added pairwise, l and l + n for n = kGateLanes / 2, ..., 1.
inline constexpr int kGateLanes = 32;
void gate_rows(const Tensor& x, const Tensor& gate, const Tensor& out, const Stream& stream);

}  // namespace moebius
