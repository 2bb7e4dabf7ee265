// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows of 10 bits per element on GPUs (comm/low_latency/logfmt.h): a warp codes or decodes a group
// of 128 elements, four per lane.
#pragma once

#include "comm/device/grid.cuh"
#include "comm/low_latency/logfmt.h"

namespace moebius::comm {

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

// One warp decodes a group and adds it, with a weight, to the sums of its lanes.
__device__ inline void add_coded_group(
    const std::byte* row, int hidden, int group, float weight, float (&sum)[kLogfmtPerLane]) {
  const int first_byte = 5 * lane_id();
  const auto* words =
      reinterpret_cast<const uint32_t*>(row + logfmt::codes_at(group)) + first_byte / 4;
  const uint64_t packed =
      (static_cast<uint64_t>(words[1]) << 32 | words[0]) >> 8 * (first_byte % 4);
  const uint2 stored = *reinterpret_cast<const uint2*>(row + logfmt::header_at(hidden, group));
  const logfmt::Header header{__uint_as_float(stored.x), __uint_as_float(stored.y)};
#pragma unroll
  for (int i = 0; i < kLogfmtPerLane; ++i) {
    const auto code = static_cast<uint32_t>(packed >> 10 * i & 0x3ff);
    sum[i] += weight * logfmt::decode(code, header);
  }
}

}  // namespace moebius::comm
