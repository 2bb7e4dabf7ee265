// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low-latency combine of rows that travel in logfmt (comm/low_latency/logfmt.h).  Items of work are
// those of combine.cu, except that a warp sums a group of 128 elements, four per lane.
#pragma once

#include "comm/low_latency/cuda/await_rows.cuh"
#include "comm/low_latency/logfmt.h"

namespace moebius::comm::low_latency_combine {

inline constexpr int kLogfmtPerLane = static_cast<int>(logfmt::kGroup) / 32;

// Four elements of a row.
template <typename Element>
struct alignas(kLogfmtPerLane * sizeof(Element)) LogfmtElements {
  Element x[kLogfmtPerLane];
};

// One warp codes a group.  Lane l has elements 4 l to 4 l + 3, whose codes are 5 bytes; lanes
// exchange these to store whole words.
template <typename Type>
__device__ inline void encode_group(const typename Type::Element* row,
                                    std::byte* to,
                                    int hidden,
                                    int group) {
  using Element = typename Type::Element;
  const auto four =
      *(reinterpret_cast<const LogfmtElements<Element>*>(row + group * logfmt::kGroup) + lane_id());
  float x[kLogfmtPerLane];
  uint32_t max_bits = 0;
  uint32_t min_bits = ~0u;
#pragma unroll
  for (int i = 0; i < kLogfmtPerLane; ++i) {
    x[i] = Type::load(four.x[i]);
    const uint32_t bits = __float_as_uint(x[i]) & 0x7fffffffu;
    max_bits = max(max_bits, bits);
    min_bits = bits >= logfmt::kSmallestNormalBits ? min(min_bits, bits) : min_bits;
  }
  const logfmt::Header header = logfmt::make_header(__reduce_max_sync(kAllLanes, max_bits),
                                                    __reduce_min_sync(kAllLanes, min_bits));
  uint64_t packed = 0;
#pragma unroll
  for (int i = 0; i < kLogfmtPerLane; ++i) {
    packed |= static_cast<uint64_t>(logfmt::encode(x[i], header)) << 10 * i;
  }
  constexpr int kWords = static_cast<int>(logfmt::kCodeBytes) / 4;
  auto* words = reinterpret_cast<uint32_t*>(to + logfmt::codes_at(group));
#pragma unroll
  for (int first = 0; first < kWords; first += 32) {
    const int word = first + lane_id();
    // Byte b of the codes belongs to lane b / 5.  A word has bytes of one lane or of two.
    const int lower = min(4 * word / 5, 31);
    const int upper = min((4 * word + 3) / 5, 31);
    const uint64_t low = __shfl_sync(kAllLanes, packed, lower);
    const uint64_t high = __shfl_sync(kAllLanes, packed, upper);
    if (word < kWords) {
      uint64_t value = low >> 8 * (4 * word - 5 * lower);
      if (upper != lower) {
        value |= high << 8 * (5 * upper - 4 * word);
      }
      words[word] = static_cast<uint32_t>(value);
    }
  }
  if (lane_id() == 0) {
    *reinterpret_cast<uint2*>(to + logfmt::header_at(hidden, group)) =
        make_uint2(__float_as_uint(header.log_min), __float_as_uint(header.step));
  }
}

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
  const Term own = find_term<false>(combine, block, token, part);
  if (!find_rows(args, block, token, part, own, has_waited)) {
    return false;
  }
  float sum[kLogfmtPerLane] = {};
  const int first_byte = 5 * lane_id();
  for (uint32_t terms = __ballot_sync(kAllLanes, own.contributes); terms != 0; terms &= terms - 1) {
    const int k = __ffs(static_cast<int>(terms)) - 1;
    const float weight = __shfl_sync(kAllLanes, own.weight, k);
    const std::byte* row =
        call.window(call.rank()) +
        layout.returned_at(bank_of(block.epoch), int64_t{token} * layout.topk + k);
    const auto* words =
        reinterpret_cast<const uint32_t*>(row + logfmt::codes_at(group)) + first_byte / 4;
    const uint64_t packed =
        (static_cast<uint64_t>(words[1]) << 32 | words[0]) >> 8 * (first_byte % 4);
    const uint2 stored =
        *reinterpret_cast<const uint2*>(row + logfmt::header_at(layout.hidden, group));
    const logfmt::Header header{__uint_as_float(stored.x), __uint_as_float(stored.y)};
#pragma unroll
    for (int i = 0; i < kLogfmtPerLane; ++i) {
      const auto code = static_cast<uint32_t>(packed >> 10 * i & 0x3ff);
      sum[i] += weight * logfmt::decode(code, header);
    }
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
      send_logfmt<Type>(SendCursor(args, block, num_senders));
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
