// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// `cpu_avx512`: sixteen lanes, primitive by primitive as cpu_avx2.cc.  Compiled with AVX-512 F, BW,
// VL and DQ; see vector_kernels.h.
#include <immintrin.h>

#include "quant/cpu/vector_kernels.h"
#include "quant/kernel_tables.h"

namespace moebius::quant {

namespace cpu_avx512 {

struct Isa {
  using F = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16;

  static F set(float value) { return _mm512_set1_ps(value); }
  static I set(int value) { return _mm512_set1_epi32(value); }

  static F load_f32(const void* p) { return _mm512_loadu_ps(p); }
  static F load_f16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static I load_u16(const void* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static I load_u8(const void* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  // The bytes of kLanes / 8 words.
  static I widen_u8(const uint64_t* words) {
    return _mm512_cvtepu8_epi32(
        _mm_set_epi64x(static_cast<long long>(words[1]), static_cast<long long>(words[0])));
  }
  static I load_i8(const void* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }

  static void store_f32(F value, void* p) { _mm512_storeu_ps(p, value); }
  static void store_f16(F value, void* p) {
    _mm256_storeu_si256(static_cast<__m256i*>(p),
                        _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  // Lanes in [0, 65535].
  static void store_u16(I value, void* p) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(value));
  }
  // The low byte of each lane.
  static void store_u8(I value, void* p) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(value));
  }

  static I as_int(F value) { return _mm512_castps_si512(value); }
  static F as_float(I value) { return _mm512_castsi512_ps(value); }
  static I to_int(F value) { return _mm512_cvtps_epi32(value); }  // to the nearest, ties to even
  static I truncate_to_int(F value) { return _mm512_cvttps_epi32(value); }
  static F to_float(I value) { return _mm512_cvtepi32_ps(value); }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }  // b where a or b is NaN or both are zero
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F round_even(F value) {
    return _mm512_roundscale_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F zero_if_nan(F value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(value, value, _CMP_ORD_Q), value);
  }

  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static I sub(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I bit_and(I a, I b) { return _mm512_and_si512(a, b); }
  static I bit_andnot(I a, I b) { return _mm512_andnot_si512(a, b); }  // ~a & b
  static I bit_or(I a, I b) { return _mm512_or_si512(a, b); }
  template <int kBits>
  static I shift_left(I value) {
    return _mm512_slli_epi32(value, kBits);
  }
  template <int kBits>
  static I shift_right(I value) {  // logical
    return _mm512_srli_epi32(value, kBits);
  }
  // a > b ? yes : no, signed.
  static I if_greater(I a, I b, I yes, I no) {
    return _mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(a, b), no, yes);
  }

  // |value| of the e2m1 code in the low four bits of each lane.
  static F e2m1_magnitude(I codes) {
    const F table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f,  // sign 0
                                   0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    return _mm512_permutexvar_ps(codes, table);
  }

  static float reduce_min(F value) { return _mm512_reduce_min_ps(value); }
  static float reduce_max(F value) { return _mm512_reduce_max_ps(value); }
};

}  // namespace cpu_avx512

const RowKernels cpu_avx512_kernels = {
    VectorKernels<cpu_avx512::Isa>::range,
    VectorKernels<cpu_avx512::Isa>::encode,
    VectorKernels<cpu_avx512::Isa>::decode,
    VectorKernels<cpu_avx512::Isa>::widen,
};

}  // namespace moebius::quant
