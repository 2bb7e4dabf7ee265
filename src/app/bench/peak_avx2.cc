// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "app/bench/peak_kernels.h"

namespace moebius::bench {

// 12 chains hide the latency of two multiply-adds per cycle.
int64_t run_avx2_fma(int64_t rounds) {
  constexpr int kChains = 12;
  const __m256 a = _mm256_set1_ps(0.75f);
  const __m256 b = _mm256_set1_ps(0.5f);
  __m256 sum[kChains];
  for (int i = 0; i < kChains; ++i) {
    sum[i] = _mm256_setzero_ps();
  }
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      sum[i] = _mm256_fmadd_ps(sum[i], a, b);
    }
  }
  for (int i = 0; i < kChains; ++i) {
    asm volatile("" : : "x"(sum[i]));  // the loop must not be dropped
  }
  return rounds * kChains * 8 * 2;
}

}  // namespace moebius::bench
