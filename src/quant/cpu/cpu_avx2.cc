// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `cpu_avx2`: eight lanes.  Compiled with AVX2 and F16C; see kernels.inc.
#include <immintrin.h>

#include <cstddef>

#include "quant/kernel_tables.h"

namespace moebius::quant {

namespace cpu_avx2 {

namespace {

using Reg = __m256;

#include "core/vectors.inc"

Bits as_bits(__m256i integers) {
  return __builtin_bit_cast(Bits, integers);
}
__m256i as_integers(Bits bits) {
  return __builtin_bit_cast(__m256i, bits);
}

Bits widen_bytes(const void* p) {
  return as_bits(_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
}
Bits widen_signed_bytes(const void* p) {
  return as_bits(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
}
Bits spread_bytes(const uint64_t* words) {
  return as_bits(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(words[0]))));
}
Bits widen_words(const void* p) {
  return as_bits(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
}
Reg widen_halves(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}

void store_bytes(void* p, Bits bits) {
  const __m256i low_bytes =
      _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                       -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i words = _mm256_shuffle_epi8(as_integers(bits), low_bytes);
  _mm_storel_epi64(
      static_cast<__m128i*>(p),
      _mm_unpacklo_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
void store_words(void* p, Bits bits) {
  const __m256i words = _mm256_packus_epi32(as_integers(bits), as_integers(bits));
  _mm_storeu_si128(static_cast<__m128i*>(p),
                   _mm256_castsi256_si128(_mm256_permute4x64_epi64(words, 0x08)));
}
void store_halves(void* p, Reg x) {
  _mm_storeu_si128(static_cast<__m128i*>(p),
                   _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

Reg min(Reg a, Reg b) {
  return _mm256_min_ps(a, b);
}
Reg max(Reg a, Reg b) {
  return _mm256_max_ps(a, b);
}
Bits nearest(Reg x) {
  return as_bits(_mm256_cvtps_epi32(x));
}
Reg round_even(Reg x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
Reg e2m1_magnitude(Bits codes) {
  return _mm256_permutevar8x32_ps(_mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f),
                                  as_integers(codes));
}

float reduce_min(Reg x) {
  __m128 v = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  v = _mm_min_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_min_ss(v, _mm_shuffle_ps(v, v, 1)));
}
float reduce_max(Reg x) {
  __m128 v = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  v = _mm_max_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps(v, v, 1)));
}

#include "quant/cpu/kernels.inc"

}  // namespace

}  // namespace cpu_avx2

const RowKernels cpu_avx2_kernels = {cpu_avx2::range, cpu_avx2::encode, cpu_avx2::decode,
                                     cpu_avx2::widen};

}  // namespace moebius::quant
