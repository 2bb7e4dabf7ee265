// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <limits>

#include "core/cuda/slot_order.h"
#include "core/ids.h"
#include "core/parallel.h"
#include "core/same_device.h"
#include "experts/cuda/rows/permute.h"
#include "experts/permute.h"
#include "moebius/permute.h"

namespace moebius {

namespace {

// Slots and rows must fit into i32.
void expect_countable(const Shape& slots) {
  expect_le(slots.numel(), std::numeric_limits<int32_t>::max(), "slots");
}

void expect_permutation(const Permutation& p, int64_t num_tokens, int64_t topk, Device device) {
  expect_defined(p.expert_offsets, "expert_offsets");
  expect_dtype(p.expert_offsets, DType::kI32, "expert_offsets");
  expect_eq(p.expert_offsets.num_dims(), 1, "dimensions of expert_offsets");
  expect_ge(p.expert_offsets.dim(0), 2, "expert_offsets.dim(0)");
  expect_dtype(p.slot_of_row, DType::kI32, "slot_of_row");
  expect_shape(p.slot_of_row, {num_tokens * topk}, "slot_of_row");
  expect_dtype(p.row_of_slot, DType::kI32, "row_of_slot");
  expect_shape(p.row_of_slot, {num_tokens, topk}, "row_of_slot");
  expect_on(p.expert_offsets, device, "expert_offsets");
  expect_on(p.slot_of_row, device, "slot_of_row");
  expect_on(p.row_of_slot, device, "row_of_slot");
}

}  // namespace

Permutation allocate_permutation(int64_t num_tokens,
                                 int64_t topk,
                                 int64_t num_local_experts,
                                 Device device) {
  expect_ge(num_tokens, 0, "num_tokens");
  expect_ge(topk, 1, "topk");
  expect_ge(num_local_experts, 1, "num_local_experts");
  expect_countable(Shape{num_tokens, topk});
  return {Tensor::empty({num_local_experts + 1}, DType::kI32, device),
          Tensor::empty({num_tokens * topk}, DType::kI32, device),
          Tensor::empty({num_tokens, topk}, DType::kI32, device)};
}

void make_permutation(const Tensor& topk_ids,
                      const Tensor& expert_map,
                      const Permutation& out,
                      const Stream& stream) {
  expect_id_dtype(topk_ids, "topk_ids");
  expect_eq(topk_ids.num_dims(), 2, "dimensions of topk_ids");
  expect_countable(topk_ids.shape());
  const Device device = topk_ids.device();
  expect_permutation(out, topk_ids.dim(0), topk_ids.dim(1), device);
  if (expert_map) {
    expect_dtype(expert_map, DType::kI32, "expert_map");
    expect_eq(expert_map.num_dims(), 1, "dimensions of expert_map");
    expect_on(expert_map, device, "expert_map");
  }
  expect_stream(stream, device);
  const int64_t num_local_experts = out.expert_offsets.dim(0) - 1;
  if (device.is_cuda()) {
    cuda_order_slots({.ids = topk_ids,
                      .expert_map = expert_map,
                      .num_local_experts = num_local_experts,
                      .expert_offsets = out.expert_offsets,
                      .slot_of_row = out.slot_of_row,
                      .row_of_slot = out.row_of_slot},
                     stream);
    return;
  }
  RowOrder order;
  order.expert_offsets = out.expert_offsets.data<int32_t>();
  order.output_rows = out.slot_of_row.data<int32_t>();
  const int64_t num_experts = expert_map ? expert_map.dim(0) : num_local_experts;
  order_selections(topk_ids, expert_map, num_experts, num_local_experts, order);
  auto* row_of_slot = out.row_of_slot.data<int32_t>();
  for (int64_t r = 0; r < order.num_slots; ++r) {
    row_of_slot[order.output_rows[r]] = r < order.num_rows ? static_cast<int32_t>(r) : -1;
  }
}

void permute_rows(const Tensor& x,
                  const Permutation& permutation,
                  const Tensor& out,
                  const Stream& stream) {
  expect_defined(x, "x");
  expect_eq(x.num_dims(), 2, "dimensions of x");
  expect_defined(permutation.row_of_slot, "row_of_slot");
  expect_eq(permutation.row_of_slot.num_dims(), 2, "dimensions of row_of_slot");
  const int64_t topk = permutation.row_of_slot.dim(1);
  expect_permutation(permutation, x.dim(0), topk, x.device());
  expect_dtype(out, x.dtype(), "out");
  expect_eq(out.num_dims(), 2, "dimensions of out");
  expect_eq(out.dim(1), x.dim(1), "out.dim(1)");
  expect_on(out, x.device(), "out");
  expect_writable(out, "out");
  expect_stream(stream, x.device());
  if (x.device().is_cuda()) {
    cuda_permute_rows({x, permutation.row_of_slot, out}, stream);
    return;
  }
  const int32_t num_rows =
      permutation.expert_offsets.data<int32_t>()[permutation.expert_offsets.dim(0) - 1];
  expect_ge(out.dim(0), num_rows, "out.dim(0)");
  const auto* slots = permutation.slot_of_row.data<int32_t>();
  const int64_t bytes = row_bytes(x.dtype(), x.dim(1));
  const int64_t grain = std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(1, bytes));
  parallel_for(stream, num_rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::memcpy(out.bytes() + r * bytes, x.bytes() + slots[r] / topk * bytes,
                  static_cast<size_t>(bytes));
    }
  });
}

}  // namespace moebius
