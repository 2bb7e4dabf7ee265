// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of this folder in a build without CUDA.
#include "layer/rows/cuda/rows.h"

namespace moebius {

void cuda_copy_rows(const Tensor&, const Tensor& out, const Stream&) {
  expect_usable(out.device());
}
void cuda_add_rows(const Tensor&, const Tensor&, const Tensor& out, const Stream&) {
  expect_usable(out.device());
}
void cuda_scale_rows(const Tensor&, const Tensor&, const Tensor& out, const Stream&) {
  expect_usable(out.device());
}
void cuda_gate_rows(const Tensor&, const Tensor&, const Tensor& out, const Stream&) {
  expect_usable(out.device());
}
void cuda_clear_rows_after(const Tensor& rows, const Tensor&, const Stream&) {
  expect_usable(rows.device());
}
void cuda_fill(const Tensor& tensor, uint32_t, const Stream&) {
  expect_usable(tensor.device());
}
void cuda_copy_counts(const Tensor& from, const Tensor&, const Stream&) {
  expect_usable(from.device());
}
void cuda_map_ids(const Tensor& ids, const Tensor&, const Tensor&, const Stream&) {
  expect_usable(ids.device());
}
void cuda_count_rows(const Tensor& row_of_slot, int64_t, const Tensor&, const Stream&) {
  expect_usable(row_of_slot.device());
}
void cuda_count_selections(const Tensor& ids, const Tensor&, const Stream&) {
  expect_usable(ids.device());
}
void cuda_add_counts(const Tensor& counts, const Tensor&, const Stream&) {
  expect_usable(counts.device());
}

}  // namespace moebius
