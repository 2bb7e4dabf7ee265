// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The operations of layer/rows/row_ops.h, and those on ids and counts, on a GPU.  Arguments are
// validated; nothing waits for the device.  In a build without CUDA all throw Unsupported.
#pragma once

#include <cstdint>

#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius {

// The bits of the functions in row_ops.h.  cuda_gate_rows takes the device's exp of a double: its
// factor may be the next float where that exp rounds otherwise, in one of some 2^28 rows.
void cuda_copy_rows(const Tensor& in, const Tensor& out, const Stream& stream);
void cuda_add_rows(const Tensor& a, const Tensor& b, const Tensor& out, const Stream& stream);
void cuda_scale_rows(const Tensor& x, const Tensor& weights, const Tensor& out, const Stream& on);
void cuda_gate_rows(const Tensor& x, const Tensor& gate, const Tensor& out, const Stream& stream);

// Rows from *num_rows on (i32 [1]) become zeros; rows [.., H] of 2 or 4 bytes an element.
void cuda_clear_rows_after(const Tensor& rows, const Tensor& num_rows, const Stream& stream);
// Every element of an i32 or f32 tensor becomes the one with these bits.
void cuda_fill(const Tensor& tensor, uint32_t bits, const Stream& stream);
// to i32 [..] = from.
void cuda_copy_counts(const Tensor& from, const Tensor& to, const Stream& stream);
// local i32 [..] = map[ids], -1 for ids that are masked or not in the map.
void cuda_map_ids(const Tensor& ids, const Tensor& map, const Tensor& local, const Stream& on);
// counts i32 [L] = rows of each expert among row_of_slot, which places expert e from e * max_rows
// on and holds -1 where there is no row.
void cuda_count_rows(const Tensor& row_of_slot,
                     int64_t max_rows,
                     const Tensor& counts,
                     const Stream& stream);
// total i64 [1] += the ids that are not masked.
void cuda_count_selections(const Tensor& ids, const Tensor& total, const Stream& stream);
// totals i64 [n] += counts i32 [n].
void cuda_add_counts(const Tensor& counts, const Tensor& totals, const Stream& stream);

}  // namespace moebius
