// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// AVX2 + FMA + F16C.  A full tile is 6 tokens x 16 experts: 12 accumulators leave 4 of the 16
// registers for operands; 2 loads and 6 broadcasts feed 12 multiply-adds.
#include <immintrin.h>

#include "router/cpu/simd.h"
#include "router/exp_constants.h"

namespace moebius::router {

namespace avx2 {

namespace {

using Reg = __m256;
constexpr int kLanes = 8;
constexpr int kTilePanels[kMaxTileRows + 1] = {0, 4, 2, 1, 1, 1, 1};

struct Half {
  uint16_t bits;
};
struct BHalf {
  uint16_t bits;
};

Reg load(const float* p) {
  return _mm256_loadu_ps(p);
}
Reg load(const Half* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
Reg load(const BHalf* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
// Rows of panels, see simd.h.
template <int kOdd>
Reg load_half(const float* row, int v) {
  return load(row + kOdd * kPanelWidth + v * kLanes);
}
template <int kOdd>
Reg load_half(const Half* row, int v) {
  return load(row + kOdd * kPanelWidth + v * kLanes);
}
template <int kOdd>
Reg load_half(const BHalf* row, int v) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * v * kLanes));
  return _mm256_castsi256_ps(kOdd ? _mm256_and_si256(pairs, _mm256_set1_epi32(-0x10000))
                                  : _mm256_slli_epi32(pairs, 16));
}
void store(float* p, Reg a) {
  _mm256_storeu_ps(p, a);
}
Reg set1(float a) {
  return _mm256_set1_ps(a);
}
Reg add(Reg a, Reg b) {
  return _mm256_add_ps(a, b);
}
Reg sub(Reg a, Reg b) {
  return _mm256_sub_ps(a, b);
}
Reg mul(Reg a, Reg b) {
  return _mm256_mul_ps(a, b);
}
Reg div(Reg a, Reg b) {
  return _mm256_div_ps(a, b);
}
Reg fmadd(Reg a, Reg b, Reg c) {
  return _mm256_fmadd_ps(a, b, c);
}
Reg max(Reg a, Reg b) {
  return _mm256_max_ps(a, b);
}
Reg neg_abs(Reg a) {
  return _mm256_or_ps(a, _mm256_set1_ps(-0.0f));
}
Reg one_where_nonnegative(Reg x, Reg z) {
  return _mm256_blendv_ps(z, set1(1.0f), _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GE_OQ));
}
unsigned equal_lanes(Reg a, Reg b) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)));
}

Reg power_of_two(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
Reg times_power_of_two(Reg p, Reg n) {
  const __m256i exponent = _mm256_cvttps_epi32(n);
  const __m256i half = _mm256_srai_epi32(exponent, 1);
  return mul(mul(p, power_of_two(half)), power_of_two(_mm256_sub_epi32(exponent, half)));
}

float reduce_max(Reg a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
float sum_in_halves(const Reg (&partial)[2]) {
  const Reg by8 = add(partial[0], partial[1]);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}

#include "router/cpu/kernels.inc"

}  // namespace

}  // namespace avx2

const SimdOps kAvx2Ops = {avx2::widen, avx2::tile, avx2::softmax, avx2::sigmoid, avx2::topk};

}  // namespace moebius::router
