// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// AVX2 + FMA + F16C.  The 12 accumulators of a full tile, 6 tokens x 16 experts, leave 4 of the 16
// registers for operands; 2 loads and 6 broadcasts feed 12 multiply-adds.
#include <immintrin.h>

#include <type_traits>

#include "router/cpu/simd.h"
#include "router/exp_constants.h"

namespace moebius::router {

namespace avx2 {

namespace {

using Reg = __m256;
constexpr int kTilePanels[kMaxTileRows + 1] = {0, 4, 2, 1, 1, 1, 1};

#include "core/vectors.inc"

Reg widen_halves(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
Bits widen_words(const void* p) {
  return __builtin_bit_cast(Bits,
                            _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
}
Reg fmadd(Reg a, Reg b, Reg c) {
  return _mm256_fmadd_ps(a, b, c);
}
Reg max(Reg a, Reg b) {
  return _mm256_max_ps(a, b);
}
unsigned equal_lanes(Reg a, Reg b) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)));
}
float reduce_max(Reg a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
float sum_in_halves(const Reg (&partial)[2]) {
  const Reg by8 = partial[0] + partial[1];
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}

#include "router/cpu/kernels.inc"

}  // namespace

}  // namespace avx2

const SimdOps kAvx2Ops = {avx2::widen, avx2::tile, avx2::softmax, avx2::sigmoid, avx2::topk};

}  // namespace moebius::router
