// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstddef>

#include "core/row_sums.h"

namespace moebius {

namespace row_sums_avx2 {

namespace {

using Reg = __m256;
using HalfReg = __m128i;

#include "core/vectors.inc"

Reg widen(HalfReg half) {
  return _mm256_cvtph_ps(half);
}
HalfReg narrow(Reg x) {
  return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
Bits join(HalfReg low, HalfReg high) {
  return __builtin_bit_cast(Bits, _mm256_set_m128i(high, low));
}

void put(void* p, Bits bits, bool past_caches) {
  auto* to = static_cast<__m256i*>(p);
  const auto value = __builtin_bit_cast(__m256i, bits);
  past_caches ? _mm256_stream_si256(to, value) : _mm256_storeu_si256(to, value);
}

#include "core/row_sums.inc"

}  // namespace

}  // namespace row_sums_avx2

void sum_rows_avx2(const RowSum& sum) {
  row_sums_avx2::sum_any(sum);
}

}  // namespace moebius
