// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// AVX-512 (F, BW, VL, DQ).  A full tile of 6 tokens x 32 experts has 12 accumulators, which is
// enough to hide the latency of two multiply-adds per cycle.
// Why VDPBF16PS is not used: it adds both products of a pair to one chain, which is not the order
// of ref.h, and it is said to be no faster than two multiply-adds.
#include <immintrin.h>

#include <type_traits>

#include "router/cpu/simd.h"
#include "router/exp_constants.h"

namespace moebius::router {

namespace avx512 {

namespace {

using Reg = __m512;
constexpr int kTilePanels[kMaxTileRows + 1] = {0, 4, 4, 4, 2, 2, 2};

#include "core/vectors.inc"

Reg widen_halves(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
Bits widen_words(const void* p) {
  return __builtin_bit_cast(
      Bits, _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))));
}
Reg fmadd(Reg a, Reg b, Reg c) {
  return _mm512_fmadd_ps(a, b, c);
}
Reg max(Reg a, Reg b) {
  return _mm512_max_ps(a, b);
}
unsigned equal_lanes(Reg a, Reg b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
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
