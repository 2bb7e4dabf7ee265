// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "app/bench/peak_kernels.h"

namespace moebius::bench {

// 12 chains hide the latency of two products per cycle.
int64_t run_avx512_vnni(int64_t rounds) {
  constexpr int kChains = 12;
  const __m512i a = _mm512_set1_epi32(0x01010101);
  __m512i sum[kChains];
  for (int i = 0; i < kChains; ++i) {
    sum[i] = _mm512_setzero_si512();
  }
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      sum[i] = _mm512_dpbusd_epi32(sum[i], a, a);
    }
  }
  for (int i = 0; i < kChains; ++i) {
    asm volatile("" : : "v"(sum[i]));  // the loop must not be dropped
  }
  return rounds * kChains * 64 * 2;
}

}  // namespace moebius::bench
