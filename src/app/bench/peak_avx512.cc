// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "app/bench/peak_kernels.h"

namespace moebius::bench {

// 12 chains hide the latency of two multiply-adds per cycle.
int64_t run_avx512_fma(int64_t rounds) {
  constexpr int kChains = 12;
  const __m512 a = _mm512_set1_ps(0.75f);
  const __m512 b = _mm512_set1_ps(0.5f);
  __m512 sum[kChains];
  for (int i = 0; i < kChains; ++i) {
    sum[i] = _mm512_setzero_ps();
  }
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      sum[i] = _mm512_fmadd_ps(sum[i], a, b);
    }
  }
  for (int i = 0; i < kChains; ++i) {
    asm volatile("" : : "v"(sum[i]));  // the loop must not be dropped
  }
  return rounds * kChains * 16 * 2;
}

}  // namespace moebius::bench
