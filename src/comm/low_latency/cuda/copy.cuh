// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows that travel as they are.  For rows that are cast there is cast.cuh.
#pragma once

#include "comm/low_latency/cuda/device.cuh"

namespace moebius::comm {

// A part of a row as it is, in words of kUnitBytes.  Small words are not kept in registers.
template <int kUnitBytes, int kElementBytes>
struct CopyPart {
  static constexpr int kUnit = kUnitBytes;
  static constexpr bool kIsCast = false;
  static constexpr int kPartBytes = kPartElements * kElementBytes;
  static constexpr int kWords = kUnit == 16 ? kPartBytes / 16 / 32 : 1;
  using Word = typename UnitWord<kUnit>::Type;
  Word words[kWords];
  const Word* source;
  int num_words;

  __device__ void load(const std::byte* row, int hidden, int part) {
    const int begin = part * kPartBytes;
    const int row_bytes = hidden * kElementBytes;
    num_words = (row_bytes - begin < kPartBytes ? row_bytes - begin : kPartBytes) / kUnit;
    source = reinterpret_cast<const Word*>(row + begin);
    if constexpr (kUnit == 16) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const int at = i * 32 + lane_id();
        words[i] = at < num_words ? ptx::ld_nc_no_allocate(source + at) : make_int4(0, 0, 0, 0);
      }
    }
  }
  __device__ void prepare(bool) {}
  __device__ float own_scale() const {
    return 0.0f;
  }

  __device__ void store(std::byte* message, int, int part, float) const {
    auto* to = reinterpret_cast<Word*>(message + part * kPartBytes);
    if constexpr (kUnit == 16) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const int at = i * 32 + lane_id();
        if (at < num_words) {
          ptx::st_no_allocate(to + at, words[i]);
        }
      }
    } else {
      for (int at = lane_id(); at < num_words; at += 32) {
        store_word(to + at, __ldg(source + at));
      }
    }
  }
};

}  // namespace moebius::comm
