// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "app/bench/peak_loop.h"

namespace moebius::bench {

int64_t run_avx512_fma(int64_t rounds) {
  return run_fma(rounds, _mm512_set1_ps(0.75f), _mm512_set1_ps(0.5f),
                 [](__m512 sum, __m512 a, __m512 b) { return _mm512_fmadd_ps(sum, a, b); });
}

}  // namespace moebius::bench
