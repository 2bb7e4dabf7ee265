// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `cpu_avx512`: sixteen lanes.  Compiled with AVX-512 F, BW, VL and DQ; see kernels.inc.
#include <immintrin.h>

#include <cstddef>

#include "quant/kernel_tables.h"

namespace moebius::quant {

namespace cpu_avx512 {

namespace {

using Reg = __m512;

#include "core/vectors.inc"

Bits as_bits(__m512i integers) {
  return __builtin_bit_cast(Bits, integers);
}
__m512i as_integers(Bits bits) {
  return __builtin_bit_cast(__m512i, bits);
}

Bits widen_bytes(const void* p) {
  return as_bits(_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
}
Bits widen_signed_bytes(const void* p) {
  return as_bits(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
}
Bits spread_bytes(const uint64_t* words) {
  return as_bits(_mm512_cvtepu8_epi32(
      _mm_set_epi64x(static_cast<long long>(words[1]), static_cast<long long>(words[0]))));
}
Bits widen_words(const void* p) {
  return as_bits(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))));
}
Reg widen_halves(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}

void store_bytes(void* p, Bits bits) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(as_integers(bits)));
}
void store_words(void* p, Bits bits) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(as_integers(bits)));
}
void store_halves(void* p, Reg x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

Reg min(Reg a, Reg b) {
  return _mm512_min_ps(a, b);
}
Reg max(Reg a, Reg b) {
  return _mm512_max_ps(a, b);
}
Bits nearest(Reg x) {
  return as_bits(_mm512_cvtps_epi32(x));
}
Reg round_even(Reg x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
Reg e2m1_magnitude(Bits codes) {
  const Reg table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f,  // sign 0
                                   0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  return _mm512_permutexvar_ps(as_integers(codes), table);
}

float reduce_min(Reg x) {
  return _mm512_reduce_min_ps(x);
}
float reduce_max(Reg x) {
  return _mm512_reduce_max_ps(x);
}

#include "quant/cpu/kernels.inc"

}  // namespace

}  // namespace cpu_avx512

const RowKernels cpu_avx512_kernels = {cpu_avx512::range, cpu_avx512::encode, cpu_avx512::decode,
                                       cpu_avx512::widen};

}  // namespace moebius::quant
