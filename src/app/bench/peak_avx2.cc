// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "app/bench/peak_loop.h"

namespace moebius::bench {

// Two multiply-adds per cycle need 12 chains.
int64_t run_avx2_fma(int64_t rounds) {
  const __m256 a = _mm256_set1_ps(0.75f);
  const __m256 b = _mm256_set1_ps(0.5f);
  return run_chains<__m256, 12>(rounds, 2 * 8,
                                [&](__m256 sum) { return _mm256_fmadd_ps(sum, a, b); });
}

}  // namespace moebius::bench
