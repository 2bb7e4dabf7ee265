// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "app/bench/peak_kernels.h"

namespace moebius::bench {

// 16 chains hide the latency of two products per cycle.
int64_t run_avx512_bf16(int64_t rounds) {
  constexpr int kChains = 16;
  const __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f003f00);  // 0.5
  __m512 sum[kChains];
  for (int i = 0; i < kChains; ++i) {
    sum[i] = _mm512_setzero_ps();
  }
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) {
      sum[i] = _mm512_dpbf16_ps(sum[i], a, a);
    }
  }
  for (int i = 0; i < kChains; ++i) {
    asm volatile("" : : "v"(sum[i]));  // the loop must not be dropped
  }
  return rounds * kChains * 32 * 2;
}

}  // namespace moebius::bench
