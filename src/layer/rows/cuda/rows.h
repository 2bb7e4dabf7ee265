// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The operations of layer/rows/row_ops.h on a GPU.  The caller has validated the arguments, and the
// host does not wait for the device.  In a build without CUDA all throw Unsupported.
#pragma once

#include <cstdint>

#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius {

struct Quantized;

// They give the bits of the functions in row_ops.h, with one exception: cuda_gate_rows uses the
// device's exp of a double, which may round differently.  Then the factor is the next float, in
// about one of 2^28 rows.
void cuda_copy_rows(const Tensor& in, const Tensor& out, const Stream& stream);
void cuda_add_rows(const Tensor& a, const Tensor& b, const Tensor& out, const Stream& stream);
void cuda_scale_rows(const Tensor& x, const Tensor& weights, const Tensor& out, const Stream& on);
void cuda_gate_rows(const Tensor& x, const Tensor& gate, const Tensor& out, const Stream& stream);

// Sets the rows from *num_rows (i32 [1]) on to zero.  rows [.., H], with elements of 2 or 4 bytes.
void cuda_clear_rows_after(const Tensor& rows, const Tensor& num_rows, const Stream& stream);
// Sets every element of an i32 or f32 tensor to the value with these bits.
void cuda_fill(const Tensor& tensor, uint32_t bits, const Stream& stream);
void cuda_fill(const Tensor& tensor, const Tensor& value, const Stream& stream);
// to i32 [..] = from.
void cuda_copy_counts(const Tensor& from, const Tensor& to, const Stream& stream);
// local i32 [..] = map[ids], or -1 for ids that are masked or not in the map.
void cuda_map_ids(const Tensor& ids, const Tensor& map, const Tensor& local, const Stream& on);
// counts i32 [L] = the number of rows of each expert in row_of_slot.  Rows of expert e begin at
// e * max_rows there, and -1 stands for no row.
void cuda_count_rows(const Tensor& row_of_slot,
                     int64_t max_rows,
                     const Tensor& counts,
                     const Stream& stream);
// total i64 [1] += the number of ids that are not masked.
void cuda_count_selections(const Tensor& ids, const Tensor& total, const Stream& stream);
void cuda_join_row_scales(const Quantized& q, const Tensor& joined, const Stream& stream);
// totals i64 [n] += counts i32 [n].
void cuda_add_counts(const Tensor& counts, const Tensor& totals, const Stream& stream);

}  // namespace moebius
