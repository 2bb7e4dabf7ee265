// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "app/bench/peak_loop.h"

namespace moebius::bench {

int64_t run_avx2_fma(int64_t rounds) {
  return run_fma(rounds, _mm256_set1_ps(0.75f), _mm256_set1_ps(0.5f),
                 [](__m256 sum, __m256 a, __m256 b) { return _mm256_fmadd_ps(sum, a, b); });
}

}  // namespace moebius::bench
