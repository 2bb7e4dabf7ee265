// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernels for AVX2, FMA and F16C.  This file uses no inline function of other files: the linker
// could keep the copy made here for processors without AVX2.
//
// A tile of C is up to 3 rows x 4 columns: 12 accumulators, 3 rows of A and one column of B fill
// the 16 registers, and 12 multiply-adds per 7 loads keep both FMA units busy.
#include <immintrin.h>

#include "experts/cpu/kernels.h"

namespace moebius::cpu {

namespace avx2 {
namespace {

inline __m256 load8(const uint16_t* bf16) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bf16));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// Loads the first `count` < 8 elements, with zeros behind them.
inline __m256 load_tail(const float* p, int64_t count) {
  float padded[8] = {};
  for (int64_t i = 0; i < count; ++i) {
    padded[i] = p[i];
  }
  return _mm256_loadu_ps(padded);
}

inline float sum8(__m256 v) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

template <int M, int N>
inline void tile(
    const float* const* a, const float* b, int64_t ldb, int64_t k, float* c, int64_t ldc) {
  __m256 acc[unsigned{M}][unsigned{N}];
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < N; ++j) {
      acc[i][j] = _mm256_setzero_ps();
    }
  }
  int64_t l = 0;
  for (; l + 8 <= k; l += 8) {
    __m256 av[unsigned{M}];
    for (int i = 0; i < M; ++i) {
      av[i] = _mm256_loadu_ps(a[i] + l);
    }
    for (int j = 0; j < N; ++j) {
      const __m256 bv = _mm256_loadu_ps(b + j * ldb + l);
      for (int i = 0; i < M; ++i) {
        acc[i][j] = _mm256_fmadd_ps(av[i], bv, acc[i][j]);
      }
    }
  }
  if (l < k) {
    for (int i = 0; i < M; ++i) {
      const __m256 av = load_tail(a[i] + l, k - l);
      for (int j = 0; j < N; ++j) {
        acc[i][j] = _mm256_fmadd_ps(av, load_tail(b + j * ldb + l, k - l), acc[i][j]);
      }
    }
  }
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < N; ++j) {
      c[i * ldc + j] = sum8(acc[i][j]);
    }
  }
}

template <int N>
inline void column_tiles(const float* const* a,
                         int64_t m,
                         const float* b,
                         int64_t ldb,
                         int64_t k,
                         float* c,
                         int64_t ldc) {
  int64_t i = 0;
  for (; i + 3 <= m; i += 3) {
    tile<3, N>(a + i, b, ldb, k, c + i * ldc, ldc);
  }
  if (m - i == 2) {
    tile<2, N>(a + i, b, ldb, k, c + i * ldc, ldc);
  } else if (m - i == 1) {
    tile<1, N>(a + i, b, ldb, k, c + i * ldc, ldc);
  }
}

void dot_f32(const DotProducts& p) {
  int64_t j = 0;
  for (; j + 4 <= p.n; j += 4) {
    column_tiles<4>(p.a, p.m, p.b + j * p.ldb, p.ldb, p.k, p.c + j, p.ldc);
  }
  for (; j < p.n; ++j) {
    column_tiles<1>(p.a, p.m, p.b + j * p.ldb, p.ldb, p.k, p.c + j, p.ldc);
  }
}

inline __m256 load8_f16(const uint16_t* f16) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(f16)));
}

// Rounds to nearest even; a NaN keeps its upper bits and becomes quiet.
inline __m128i to_bf16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

inline __m128i to_f16(__m256 v) {
  return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}

template <__m256 (*kLoad)(const uint16_t*)>
void widen(const uint16_t* in, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(out + i, kLoad(in + i));
  }
  if (i < n) {
    uint16_t padded[8] = {};
    float result[8];
    __builtin_memcpy(padded, in + i, static_cast<unsigned long>(n - i) * sizeof(uint16_t));
    _mm256_storeu_ps(result, kLoad(padded));
    __builtin_memcpy(out + i, result, static_cast<unsigned long>(n - i) * sizeof(float));
  }
}

template <__m128i (*kConvert)(__m256)>
void narrow(const float* in, uint16_t* out, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), kConvert(_mm256_loadu_ps(in + i)));
  }
  if (i < n) {
    uint16_t result[8];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(result), kConvert(load_tail(in + i, n - i)));
    __builtin_memcpy(out + i, result, static_cast<unsigned long>(n - i) * sizeof(uint16_t));
  }
}

void scale_bf16(uint16_t* values, float factor, int64_t n) {
  const __m256 factors = _mm256_set1_ps(factor);
  const auto scaled = [&](__m128i eight) {
    const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16);
    const __m256 product = _mm256_mul_ps(_mm256_castsi256_ps(wide), factors);
    const __m256i upper = _mm256_srli_epi32(_mm256_castps_si256(product), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
  };
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    auto* at = reinterpret_cast<__m128i*>(values + i);
    _mm_storeu_si128(at, scaled(_mm_loadu_si128(at)));
  }
  if (i < n) {
    uint16_t rest[8] = {};
    __builtin_memcpy(rest, values + i, static_cast<unsigned long>(n - i) * sizeof(uint16_t));
    auto* at = reinterpret_cast<__m128i*>(rest);
    _mm_storeu_si128(at, scaled(_mm_loadu_si128(at)));
    __builtin_memcpy(values + i, rest, static_cast<unsigned long>(n - i) * sizeof(uint16_t));
  }
}

// e^t is computed as 2^i * e^r, |r| <= ln2 / 2, by the series to r^7, whose remainder is below
// 6e-9.  The result is infinite where it is beyond f32.  For t below -87 it is e^-87, which a
// sigmoid does not tell apart.  NaN stays NaN.
inline __m256 exp8(__m256 t) {
  const __m256 largest = _mm256_set1_ps(88.722f);
  const __m256 is_beyond = _mm256_cmp_ps(t, largest, _CMP_GT_OQ);
  t = _mm256_min_ps(largest, t);
  t = _mm256_max_ps(_mm256_set1_ps(-87.0f), t);
  const __m256 i = _mm256_round_ps(_mm256_mul_ps(t, _mm256_set1_ps(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(i, _mm256_set1_ps(0.693359375f), t);
  r = _mm256_fnmadd_ps(i, _mm256_set1_ps(-2.12194440e-4f), r);
  constexpr float kSeries[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  __m256 p = _mm256_set1_ps(1.0f / 5040);
  for (const float c : kSeries) {
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c));
  }
  // Twice 2^(i - 1): 2^128 itself is beyond f32.
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(i), _mm256_set1_epi32(126));
  const __m256 half = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  return _mm256_blendv_ps(_mm256_add_ps(half, half), _mm256_set1_ps(__builtin_inff()), is_beyond);
}

inline __m256 mul_sigmoid8(__m256 x, __m256 z) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 e = exp8(_mm256_sub_ps(_mm256_setzero_ps(), z));
  return _mm256_div_ps(x, _mm256_add_ps(one, e));
}

void mul_sigmoid(const float* x, const float* z, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(out + i, mul_sigmoid8(_mm256_loadu_ps(x + i), _mm256_loadu_ps(z + i)));
  }
  if (i < n) {
    float result[8];
    _mm256_storeu_ps(result, mul_sigmoid8(load_tail(x + i, n - i), load_tail(z + i, n - i)));
    __builtin_memcpy(out + i, result, static_cast<unsigned long>(n - i) * sizeof(float));
  }
}

}  // namespace
}  // namespace avx2

const CpuKernels& avx2_kernels() {
  using namespace avx2;
  static constexpr CpuKernels kKernels = {"avx2",           dot_f32,         widen<load8>,
                                          widen<load8_f16>, narrow<to_bf16>, narrow<to_f16>,
                                          scale_bf16,       mul_sigmoid};
  return kKernels;
}

}  // namespace moebius::cpu
