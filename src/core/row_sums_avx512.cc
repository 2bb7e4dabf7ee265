// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// AVX-512 (F, BW, VL, DQ).
// Why no VCVTNEPS2BF16: it takes subnormal numbers for zeros.
#include <immintrin.h>

#include <cstddef>

#include "core/row_sums.h"

namespace moebius {

namespace row_sums_avx512 {

namespace {

using Reg = __m512;
constexpr int kLanes = 16;

Reg set1(float a) {
  return _mm512_set1_ps(a);
}
Reg add(Reg a, Reg b) {
  return _mm512_add_ps(a, b);
}
Reg mul(Reg a, Reg b) {
  return _mm512_mul_ps(a, b);
}

void put(void* p, __m512i bits, bool past_caches) {
  auto* to = static_cast<__m512i*>(p);
  past_caches ? _mm512_stream_si512(to, bits) : _mm512_storeu_si512(to, bits);
}

struct Single {
  using Element = float;
  static void load(const float* p, Reg (&x)[2]) {
    x[0] = _mm512_loadu_ps(p);
    x[1] = _mm512_loadu_ps(p + kLanes);
  }
  static void store(float* p, const Reg (&x)[2], bool past_caches) {
    put(p, _mm512_castps_si512(x[0]), past_caches);
    put(p + kLanes, _mm512_castps_si512(x[1]), past_caches);
  }
  static Reg round(Reg x) { return x; }
};

// Even elements in one register, odd ones in the other: bf16 is the upper half of an f32.
struct Brain {
  using Element = uint16_t;
  static void load(const uint16_t* p, Reg (&x)[2]) {
    const __m512i pairs = _mm512_loadu_si512(p);
    x[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    x[1] = _mm512_castsi512_ps(upper(pairs));
  }
  static void store(uint16_t* p, const Reg (&x)[2], bool past_caches) {
    const __m512i even = _mm512_srli_epi32(nearest(x[0]), 16);
    put(p, _mm512_or_si512(even, upper(nearest(x[1]))), past_caches);
  }
  static Reg round(Reg x) { return _mm512_castsi512_ps(upper(nearest(x))); }

 private:
  static __m512i upper(__m512i bits) { return _mm512_and_si512(bits, _mm512_set1_epi32(-0x10000)); }
  // The result in the upper half of each lane.
  static __m512i nearest(Reg x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  }
};

struct Half {
  using Element = uint16_t;
  static void load(const uint16_t* p, Reg (&x)[2]) {
    x[0] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    x[1] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + kLanes)));
  }
  static void store(uint16_t* p, const Reg (&x)[2], bool past_caches) {
    put(p, _mm512_inserti64x4(_mm512_castsi256_si512(nearest(x[0])), nearest(x[1]), 1),
        past_caches);
  }
  static Reg round(Reg x) { return _mm512_cvtph_ps(nearest(x)); }

 private:
  static __m256i nearest(Reg x) {
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};

#include "core/row_sums.inc"

}  // namespace

}  // namespace row_sums_avx512

void sum_rows_avx512(const RowSum& sum) {
  row_sums_avx512::sum_any(sum);
}

}  // namespace moebius
