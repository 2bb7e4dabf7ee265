// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/high_throughput/cuda/kernel_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "moebius/error.h"

namespace moebius::comm {

namespace {

constexpr int64_t kBulk = 16;             // bulk copies move multiples of it
constexpr int64_t kStageAlignment = 128;  // of a stage
// A larger row is taken in pieces: fewer than four warps with two stages each do not keep the links
// busy.
constexpr int64_t kMaxStage = 28 * 1024;
constexpr int64_t kPiece = 14 * 1024;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

StagePlan make_stage_plan(std::span<const PayloadShape> payloads,
                          int64_t shared_bytes,
                          int warps,
                          int stages) {
  StagePlan plan;
  int64_t bulk_bytes = 0;
  for (const PayloadShape& payload : payloads) {
    const bool in_bulk =
        payload.is_aligned && payload.row_bytes > 0 && payload.row_bytes % kBulk == 0;
    plan.in_bulk.push_back(in_bulk);
    bulk_bytes += in_bulk ? payload.row_bytes : 0;
  }
  const int64_t largest = bulk_bytes <= kMaxStage ? bulk_bytes : kPiece;
  plan.items.push_back({});
  for (size_t f = 0; f < payloads.size(); ++f) {
    const int64_t row_bytes = plan.in_bulk[f] ? payloads[f].row_bytes : 0;
    for (int64_t offset = 0; offset < row_bytes;) {
      if (plan.items.back().bytes == largest) {
        plan.items.push_back({static_cast<uint16_t>(plan.segments.size()), 0, 0});
      }
      StageItem& item = plan.items.back();
      const int64_t bytes = std::min(row_bytes - offset, largest - item.bytes);
      plan.segments.push_back({static_cast<uint32_t>(f), static_cast<uint32_t>(offset),
                               static_cast<uint32_t>(bytes), item.bytes});
      ++item.count;
      item.bytes += static_cast<uint32_t>(bytes);
      offset += bytes;
    }
  }
  expect_le(
      static_cast<int64_t>(plan.items.size()), kMaxItems,
      fmt::format("pieces of {} bytes in the payloads of a token ({} bytes)", kPiece, bulk_bytes));
  expect_le(static_cast<int64_t>(plan.segments.size()), kMaxSegments,
            fmt::format("bulk copies per token ({} bytes)", bulk_bytes));

  plan.stage_bytes = static_cast<uint32_t>(round_up(largest, kStageAlignment));
  const int64_t room =
      plan.stage_bytes == 0 ? int64_t{kMaxWarps} * kMaxStages : shared_bytes / plan.stage_bytes;
  expect_ge(room, 2, "stages in shared memory");
  plan.warps = warps > 0 ? warps : static_cast<int>(std::min<int64_t>(kMaxWarps, room / 2));
  expect_le(plan.warps, kMaxWarps, "warps of a block");

  plan.stages =
      stages > 0 ? stages : static_cast<int>(std::min<int64_t>(kMaxStages, room / plan.warps));
  expect_ge(plan.stages, 2,
            fmt::format("stages of {} bytes that each of {} warps has room for", plan.stage_bytes,
                        plan.warps));
  expect_le(int64_t{plan.warps} * plan.stages, room, "stages of all warps of a block");
  return plan;
}

}  // namespace moebius::comm
