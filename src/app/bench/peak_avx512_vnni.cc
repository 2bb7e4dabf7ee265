// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "app/bench/peak_loop.h"

namespace moebius::bench {

// Two products per cycle need 12 chains.
int64_t run_avx512_vnni(int64_t rounds) {
  const __m512i a = _mm512_set1_epi32(0x01010101);
  return run_chains<__m512i, 12>(rounds, 2 * 64,
                                 [&](__m512i sum) { return _mm512_dpbusd_epi32(sum, a, a); });
}

}  // namespace moebius::bench
