// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The windows of HighThroughput, in bytes, before it is made.  It needs neither CUDA nor a GPU.
#include <algorithm>

#include "comm/group/window_limit.h"
#include "comm/high_throughput/bank.h"
#include "comm/high_throughput/cuda/kernel_plan.h"
#include "comm/routing/row_layout.h"
#include "moebius/dispatch.h"

namespace moebius {

namespace {

// The banks take no more, and neither do the slots of combine: each has a quarter of room, and its
// fields begin at multiples of 256 bytes.
double most_bank_bytes(const HighThroughputNeeds& needs) {
  constexpr double kField = 256;
  const auto combined = static_cast<double>(needs.combine_row_bytes) + kField;
  double row_bytes = 12 * static_cast<double>(needs.topk) + 4 * kField;
  for (const int64_t bytes : needs.payload_row_bytes) {
    row_bytes += static_cast<double>(bytes) + kField;
  }
  const auto rows = static_cast<double>(needs.rows);
  return 2 * (static_cast<double>(needs.num_results) * rows * row_bytes +
              (rows + static_cast<double>(needs.combine_copies)) * combined);
}

void expect_needs(const HighThroughputNeeds& needs, int num_ranks) {
  for (const int64_t bytes : needs.payload_row_bytes) {
    expect_ge(bytes, 0, "payload_row_bytes");
  }
  comm::expect_count(needs.topk, 1, "topk");
  comm::expect_count(needs.rows, 0, "rows");
  comm::expect_count(needs.num_results, 0, "num_results");
  expect_ge(needs.combine_row_bytes, 0, "combine_row_bytes");
  comm::expect_count(needs.combine_copies, 0, "combine_copies");
  comm::expect_window_bytes(most_bank_bytes(needs), num_ranks, "high throughput");
}

// Rows come back to GPUs in slots.
int64_t cuda_combine_bytes(const HighThroughputNeeds& needs, int num_ranks) {
  if (needs.combine_row_bytes == 0) {
    return 0;
  }
  const comm::CombineRoom room =
      comm::combine_room(needs.combine_copies, needs.combine_row_bytes, 0, num_ranks);
  return BankPool::roomy(room.slots) + BankPool::roomy(room.flags);
}

}  // namespace

int64_t HighThroughput::size_hint(const HighThroughputNeeds& needs,
                                  const ExpertPlacement& placement,
                                  Device device,
                                  bool shares_memory) {
  expect_needs(needs, placement.num_ranks());
  const auto bank = [&](const RowLayout& layout) {
    return needs.rows == 0 ? 0 : BankPool::roomy(layout.block_bytes(needs.rows));
  };
  const RowLayout::Routing routing{
      .ids = row_bytes(needs.ids_dtype, needs.topk),
      .weights = needs.has_weights ? row_bytes(DType::kF32, needs.topk) : 0};
  const int64_t received = needs.num_results * bank(RowLayout(needs.payload_row_bytes, routing));
  if (!device.is_cuda()) {
    return received + (shares_memory ? 0 : bank(RowLayout({needs.combine_row_bytes})));
  }
  comm::ControlLayout control;
  control.num_ranks = placement.num_ranks();
  for (int r = 0; r < placement.num_ranks(); ++r) {
    control.max_local_experts =
        std::max(control.max_local_experts, static_cast<int>(placement.num_local(r)));
  }
  return received + cuda_combine_bytes(needs, placement.num_ranks()) + control.bytes();
}

}  // namespace moebius
