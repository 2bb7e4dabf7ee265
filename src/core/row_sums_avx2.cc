// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstddef>

#include "core/row_sums.h"

namespace moebius {

namespace row_sums_avx2 {

namespace {

using Reg = __m256;
constexpr int kLanes = 8;

Reg set1(float a) {
  return _mm256_set1_ps(a);
}
Reg add(Reg a, Reg b) {
  return _mm256_add_ps(a, b);
}
Reg mul(Reg a, Reg b) {
  return _mm256_mul_ps(a, b);
}

void put(void* p, __m256i bits, bool past_caches) {
  auto* to = static_cast<__m256i*>(p);
  past_caches ? _mm256_stream_si256(to, bits) : _mm256_storeu_si256(to, bits);
}

struct Single {
  using Element = float;
  static void load(const float* p, Reg (&x)[2]) {
    x[0] = _mm256_loadu_ps(p);
    x[1] = _mm256_loadu_ps(p + kLanes);
  }
  static void store(float* p, const Reg (&x)[2], bool past_caches) {
    put(p, _mm256_castps_si256(x[0]), past_caches);
    put(p + kLanes, _mm256_castps_si256(x[1]), past_caches);
  }
  static Reg round(Reg x) { return x; }
};

// Even elements in one register, odd ones in the other: bf16 is the upper half of an f32.
struct Brain {
  using Element = uint16_t;
  static void load(const uint16_t* p, Reg (&x)[2]) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    x[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    x[1] = _mm256_castsi256_ps(upper(pairs));
  }
  static void store(uint16_t* p, const Reg (&x)[2], bool past_caches) {
    const __m256i even = _mm256_srli_epi32(nearest(x[0]), 16);
    put(p, _mm256_or_si256(even, upper(nearest(x[1]))), past_caches);
  }
  static Reg round(Reg x) { return _mm256_castsi256_ps(upper(nearest(x))); }

 private:
  static __m256i upper(__m256i bits) { return _mm256_and_si256(bits, _mm256_set1_epi32(-0x10000)); }
  // The result in the upper half of each lane.
  static __m256i nearest(Reg x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  }
};

struct Half {
  using Element = uint16_t;
  static void load(const uint16_t* p, Reg (&x)[2]) {
    x[0] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    x[1] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + kLanes)));
  }
  static void store(uint16_t* p, const Reg (&x)[2], bool past_caches) {
    put(p, _mm256_set_m128i(nearest(x[1]), nearest(x[0])), past_caches);
  }
  static Reg round(Reg x) { return _mm256_cvtph_ps(nearest(x)); }

 private:
  static __m128i nearest(Reg x) {
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
};

#include "core/row_sums.inc"

}  // namespace

}  // namespace row_sums_avx2

void sum_rows_avx2(const RowSum& sum) {
  row_sums_avx2::sum_any(sum);
}

}  // namespace moebius
