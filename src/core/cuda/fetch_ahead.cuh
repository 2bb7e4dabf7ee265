// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/cuda/fetch_ahead.h"
#include "core/cuda/ptx.cuh"

namespace moebius::cuda {

__device__ __forceinline__ void fetch_unit(const FetchAhead& fetch, int unit) {
  ptx::bulk_prefetch(fetch.from + int64_t{FetchAhead::kUnitBytes} * unit, FetchAhead::kUnitBytes);
}

// Fetches a block's share, by one thread.  A grid of a block per SM asks for some 2.7 TB/s: at full
// speed the kernel before, whose code and operands come from memory, takes longer.
__device__ __forceinline__ void fetch_at_a_pace(const FetchAhead& fetch) {
  constexpr int64_t kCyclesOfUnit = 1430;
  int64_t due = clock64();
#pragma unroll 1
  for (int unit = static_cast<int>(blockIdx.x); unit < fetch.units;
       unit += static_cast<int>(gridDim.x)) {
    while (clock64() < due) {
    }
    due += kCyclesOfUnit;
    fetch_unit(fetch, unit);
  }
}

}  // namespace moebius::cuda
