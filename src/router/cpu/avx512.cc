// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// AVX-512 (F, BW, VL, DQ).  A full tile is 6 tokens x 32 experts: 12 accumulators, enough to hide
// the latency of two multiply-adds per cycle.
// Why no VDPBF16PS: it adds both products of a pair to one chain, which is not the order of ref.h,
// and is said to be no faster than two multiply-adds.
#include <immintrin.h>

#include "router/cpu/simd.h"
#include "router/exp_constants.h"

namespace moebius::router {

namespace avx512 {

namespace {

using Reg = __m512;
constexpr int kLanes = 16;
constexpr int kTilePanels[kMaxTileRows + 1] = {0, 4, 4, 4, 2, 2, 2};

struct Half {
  uint16_t bits;
};
struct BHalf {
  uint16_t bits;
};

Reg load(const float* p) {
  return _mm512_loadu_ps(p);
}
Reg load(const Half* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
Reg load(const BHalf* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
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
  const __m512i pairs = _mm512_loadu_si512(row + 2 * v * kLanes);
  return _mm512_castsi512_ps(kOdd ? _mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000))
                                  : _mm512_slli_epi32(pairs, 16));
}
void store(float* p, Reg a) {
  _mm512_storeu_ps(p, a);
}
Reg set1(float a) {
  return _mm512_set1_ps(a);
}
Reg add(Reg a, Reg b) {
  return _mm512_add_ps(a, b);
}
Reg sub(Reg a, Reg b) {
  return _mm512_sub_ps(a, b);
}
Reg mul(Reg a, Reg b) {
  return _mm512_mul_ps(a, b);
}
Reg div(Reg a, Reg b) {
  return _mm512_div_ps(a, b);
}
Reg fmadd(Reg a, Reg b, Reg c) {
  return _mm512_fmadd_ps(a, b, c);
}
Reg max(Reg a, Reg b) {
  return _mm512_max_ps(a, b);
}
Reg neg_abs(Reg a) {
  return _mm512_or_ps(a, _mm512_set1_ps(-0.0f));
}
Reg one_where_nonnegative(Reg x, Reg z) {
  return _mm512_mask_mov_ps(z, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GE_OQ), set1(1.0f));
}
unsigned equal_lanes(Reg a, Reg b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

Reg power_of_two(__m512i n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}
Reg times_power_of_two(Reg p, Reg n) {
  const __m512i exponent = _mm512_cvttps_epi32(n);
  const __m512i half = _mm512_srai_epi32(exponent, 1);
  return mul(mul(p, power_of_two(half)), power_of_two(_mm512_sub_epi32(exponent, half)));
}

float reduce_max(Reg a) {
  return _mm512_reduce_max_ps(a);
}
float sum_in_halves(const Reg (&partial)[1]) {
  const __m256 by8 =
      _mm256_add_ps(_mm512_castps512_ps256(partial[0]), _mm512_extractf32x8_ps(partial[0], 1));
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}

#include "router/cpu/kernels.inc"

}  // namespace

}  // namespace avx512

const SimdOps kAvx512Ops = {avx512::widen, avx512::tile, avx512::softmax, avx512::sigmoid,
                            avx512::topk};

}  // namespace moebius::router
