// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "app/bench/peak_loop.h"

namespace moebius::bench {

// Two products per cycle need 16 chains.
int64_t run_avx512_bf16(int64_t rounds) {
  const __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f003f00);  // 0.5
  return run_chains<__m512, 16>(rounds, 2 * 32,
                                [&](__m512 sum) { return _mm512_dpbf16_ps(sum, a, a); });
}

}  // namespace moebius::bench
