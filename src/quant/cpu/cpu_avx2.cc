// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `cpu_avx2`: eight lanes.  Compiled with AVX2 and F16C; see vector_kernels.h.
#include <immintrin.h>

#include "quant/cpu/vector_kernels.h"
#include "quant/kernel_tables.h"

namespace moebius::quant {

namespace cpu_avx2 {

struct Isa {
  using F = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8;

  static F set(float value) { return _mm256_set1_ps(value); }
  static I set(int value) { return _mm256_set1_epi32(value); }

  static F load_f32(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
  static F load_f16(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static I load_u16(const void* p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static I load_u8(const void* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  }
  // The bytes of kLanes / 8 words.
  static I widen_u8(const uint64_t* words) {
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(words[0])));
  }
  static I load_i8(const void* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  }

  static void store_f32(F value, void* p) { _mm256_storeu_ps(static_cast<float*>(p), value); }
  static void store_f16(F value, void* p) {
    _mm_storeu_si128(static_cast<__m128i*>(p),
                     _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  // Lanes in [0, 65535].
  static void store_u16(I value, void* p) {
    const I pairs = _mm256_permute4x64_epi64(_mm256_packus_epi32(value, value), 0x08);
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(pairs));
  }
  // The low byte of each lane.
  static void store_u8(I value, void* p) {
    const I low_bytes =
        _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12,
                         -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const I words = _mm256_shuffle_epi8(value, low_bytes);
    _mm_storel_epi64(
        static_cast<__m128i*>(p),
        _mm_unpacklo_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }

  static I as_int(F value) { return _mm256_castps_si256(value); }
  static F as_float(I value) { return _mm256_castsi256_ps(value); }
  static I to_int(F value) { return _mm256_cvtps_epi32(value); }  // to the nearest, ties to even
  static I truncate_to_int(F value) { return _mm256_cvttps_epi32(value); }
  static F to_float(I value) { return _mm256_cvtepi32_ps(value); }

  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }  // b where a or b is NaN or both are zero
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F round_even(F value) {
    return _mm256_round_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F zero_if_nan(F value) {
    return _mm256_and_ps(value, _mm256_cmp_ps(value, value, _CMP_ORD_Q));
  }

  static I add(I a, I b) { return _mm256_add_epi32(a, b); }
  static I sub(I a, I b) { return _mm256_sub_epi32(a, b); }
  static I bit_and(I a, I b) { return _mm256_and_si256(a, b); }
  static I bit_andnot(I a, I b) { return _mm256_andnot_si256(a, b); }  // ~a & b
  static I bit_or(I a, I b) { return _mm256_or_si256(a, b); }
  template <int kBits>
  static I shift_left(I value) {
    return _mm256_slli_epi32(value, kBits);
  }
  template <int kBits>
  static I shift_right(I value) {  // logical
    return _mm256_srli_epi32(value, kBits);
  }
  // a > b ? yes : no, signed.
  static I if_greater(I a, I b, I yes, I no) {
    return _mm256_blendv_epi8(no, yes, _mm256_cmpgt_epi32(a, b));
  }

  // |value| of the e2m1 code in the low four bits of each lane.
  static F e2m1_magnitude(I codes) {
    return _mm256_permutevar8x32_ps(_mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f),
                                    codes);
  }

  static float reduce_min(F value) {
    __m128 v = _mm_min_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    v = _mm_min_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_min_ss(v, _mm_shuffle_ps(v, v, 1)));
  }
  static float reduce_max(F value) {
    __m128 v = _mm_max_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    v = _mm_max_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps(v, v, 1)));
  }
};

}  // namespace cpu_avx2

const RowKernels cpu_avx2_kernels = {
    VectorKernels<cpu_avx2::Isa>::range,
    VectorKernels<cpu_avx2::Isa>::encode,
    VectorKernels<cpu_avx2::Isa>::decode,
    VectorKernels<cpu_avx2::Isa>::widen,
};

}  // namespace moebius::quant
