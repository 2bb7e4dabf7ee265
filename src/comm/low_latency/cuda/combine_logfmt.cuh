// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low-latency combine of rows that travel in logfmt (comm/low_latency/logfmt.h).  Items of work are
// those of combine.cu, except that a warp sums a group of 128 elements, four per lane.
#pragma once

#include "comm/low_latency/cuda/await_rows.cuh"
#include "comm/low_latency/cuda/logfmt.cuh"

namespace moebius::comm::low_latency_combine {

template <typename Type>
__device__ void send_logfmt(SendCursor at) {
  using Element = typename Type::Element;
  constexpr int kGroupsPerPart = kPartElements / static_cast<int>(logfmt::kGroup);
  const LowLatencyCombineCall& combine = at.args.combine;
  const LowLatencyCall& call = combine.call;
  const int hidden = call.layout.hidden;
  const int num_groups = hidden / static_cast<int>(logfmt::kGroup);
  for (; at.is_valid(); at.next()) {
    const int64_t row = __shfl_sync(kAllLanes, at.row, at.k());
    const auto* from = reinterpret_cast<const Element*>(combine.x) + row * hidden;
    std::byte* to =
        call.window(at.source) + call.layout.returned_at(bank_of(at.block.epoch), at.selection());
    const int end = min((at.first_part() + at.num_parts()) * kGroupsPerPart, num_groups);
    for (int group = at.first_part() * kGroupsPerPart; group < end; ++group) {
      encode_group<Type>(from, to, hidden, group);
    }
    if (at.is_last_of_item()) {
      __syncwarp();
      at.publish_item();
    }
  }
}

// A warp sums a group of a token.  Returns false when rows are missing that were not awaited.
template <typename Type>
__device__ bool receive_logfmt(
    const Args& args, const Block& block, int token, int group, bool has_waited) {
  using Element = typename Type::Element;
  const LowLatencyCombineCall& combine = args.combine;
  const LowLatencyCall& call = combine.call;
  const CudaLowLatencyLayout& layout = call.layout;
  const int part = group * static_cast<int>(logfmt::kGroup) / kPartElements;
  const Term own = find_term<LowLatencySum::kSelections>(combine, block, token, part);
  if (!find_rows<LowLatencySum::kSelections>(args, block, token, part, own, has_waited)) {
    return false;
  }
  float sum[kLogfmtPerLane] = {};
  for (uint32_t terms = __ballot_sync(kAllLanes, own.contributes); terms != 0; terms &= terms - 1) {
    const int k = __ffs(static_cast<int>(terms)) - 1;
    const float weight = __shfl_sync(kAllLanes, own.weight, k);
    const std::byte* row =
        call.window(call.rank()) +
        layout.returned_at(bank_of(block.epoch), int64_t{token} * layout.topk + k);
    add_coded_group(row, layout.hidden, group, weight, sum);
  }
  auto* to = reinterpret_cast<Element*>(combine.out) + int64_t{token} * layout.hidden +
             group * logfmt::kGroup + kLogfmtPerLane * lane_id();
#pragma unroll
  for (int i = 0; i < kLogfmtPerLane; ++i) {
    to[i] = Type::round(sum[i]);
  }
  return true;
}

template <typename Type>
__global__ void __launch_bounds__(kLowLatencyThreads, 1)
    combine_logfmt_kernel(const __grid_constant__ Args args) {
  __shared__ Block block;
  const LowLatencyCombineCall& combine = args.combine;
  const LowLatencyCall& call = combine.call;
  if (!begin_combine(args, block)) {
    return;
  }
  if ((call.phases & kSendPhase) != 0) {
    const int num_senders = (call.phases & kReceivePhase) == 0 ? kWarps : kSendWarps;
    if (warp_id() < num_senders) {
      send_logfmt<Type>(SendCursor(args, block, num_senders, args.combine.call.layout.num_parts));
    }
  }
  if ((call.phases & kReceivePhase) != 0) {
    const auto sum = [&](int token, int group, bool has_waited) {
      return receive_logfmt<Type>(args, block, token, group, has_waited);
    };
    constexpr auto kSum = LowLatencySum::kSelections;  // rows of a logfmt coding are sent each
    if (!receive_all<kSum, static_cast<int>(logfmt::kGroup)>(args, block, sum)) {
      return;
    }
    if (combine.wait_us != nullptr) {
      note_waits(combine);
    }
  }
}

}  // namespace moebius::comm::low_latency_combine
