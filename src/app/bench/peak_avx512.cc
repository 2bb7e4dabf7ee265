// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "app/bench/peak_loop.h"

namespace moebius::bench {

// Two multiply-adds per cycle need 12 chains.
int64_t run_avx512_fma(int64_t rounds) {
  const __m512 a = _mm512_set1_ps(0.75f);
  const __m512 b = _mm512_set1_ps(0.5f);
  return run_chains<__m512, 12>(rounds, 2 * 16,
                                [&](__m512 sum) { return _mm512_fmadd_ps(sum, a, b); });
}

}  // namespace moebius::bench
