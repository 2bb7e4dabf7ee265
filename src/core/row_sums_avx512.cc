// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// AVX-512 (F, BW, VL, DQ).
// Why VCVTNEPS2BF16 is not used: it treats subnormal numbers as zeros.
#include <immintrin.h>

#include <cstddef>

#include "core/row_sums.h"

namespace moebius {

namespace row_sums_avx512 {

namespace {

using Reg = __m512;
using HalfReg = __m256i;

#include "core/vectors.inc"

Reg widen(HalfReg half) {
  return _mm512_cvtph_ps(half);
}
HalfReg narrow(Reg x) {
  return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
Bits join(HalfReg low, HalfReg high) {
  return __builtin_bit_cast(Bits, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
}

void put(void* p, Bits bits, bool past_caches) {
  auto* to = static_cast<__m512i*>(p);
  const auto value = __builtin_bit_cast(__m512i, bits);
  past_caches ? _mm512_stream_si512(to, value) : _mm512_storeu_si512(to, value);
}

#include "core/row_sums.inc"

}  // namespace

}  // namespace row_sums_avx512

void sum_rows_avx512(const RowSum& sum) {
  row_sums_avx512::sum_any(sum);
}

}  // namespace moebius
