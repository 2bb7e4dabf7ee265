// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/slot_order.h"

#include <string_view>

#include "core/same_device.h"

namespace moebius {

void expect_order(const SlotOrder& order,
                  int64_t num_tokens,
                  int64_t topk,
                  int64_t num_local_experts,
                  Device device) {
  const auto expect_part = [&](const Tensor& part, const Shape& shape, std::string_view what) {
    expect_dtype(part, DType::kI32, what);
    expect_shape(part, shape, what);
    expect_on(part, device, what);
  };
  expect_part(order.expert_offsets, {num_local_experts + 1}, "expert_offsets of an order");
  expect_part(order.expert_counts, {num_local_experts}, "expert_counts of an order");
  expect_part(order.row_of_slot, {num_tokens, topk}, "row_of_slot of an order");
  expect_part(order.token_of_row, {num_tokens * topk}, "token_of_row of an order");
  expect_part(order.counters, {2}, "counters of an order");
  if (order.first_weights) {
    expect_on(order.first_weights, device, "first_weights of an order");
  }
}

}  // namespace moebius
