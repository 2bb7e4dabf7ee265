// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Compiled with AVX2: plain loops and intrinsics only.
#include <immintrin.h>

#include "comm/sum_rows.h"

namespace moebius {

namespace sum_rows_avx2 {
namespace {

__m256 load_bf16(const std::byte* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// To nearest even, in the low halves; a NaN stays one and becomes quiet.
__m256i round_to_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
}

__m256i pack(__m256 low, __m256 high) {
  const __m256i mixed = _mm256_packus_epi32(round_to_bf16(low), round_to_bf16(high));
  return _mm256_permute4x64_epi64(mixed, 0xd8);  // packus works on halves
}

}  // namespace
}  // namespace sum_rows_avx2

void sum_rows_bf16_avx2(const std::byte* const* rows,
                        const float* weights,
                        size_t num_rows,
                        int64_t n,
                        std::byte* out,
                        bool past_caches) {
  using namespace sum_rows_avx2;
  const bool streams = past_caches && reinterpret_cast<uintptr_t>(out) % sizeof(__m256i) == 0;
  for (int64_t i = 0; i < n; i += kSumBlock) {
    __m256 acc[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                     _mm256_setzero_ps()};
    for (size_t r = 0; r < num_rows; ++r) {
      const std::byte* x = rows[r] + 2 * i;
      const __m256 weight = _mm256_set1_ps(weights == nullptr ? 1.0f : weights[r]);
      for (int j = 0; j < 4; ++j) {
        acc[j] = _mm256_add_ps(acc[j], _mm256_mul_ps(weight, load_bf16(x + 16 * j)));
      }
    }
    auto* to = reinterpret_cast<__m256i*>(out + 2 * i);
    const __m256i first = pack(acc[0], acc[1]);
    const __m256i second = pack(acc[2], acc[3]);
    if (streams) {
      _mm256_stream_si256(to, first);
      _mm256_stream_si256(to + 1, second);
    } else {
      _mm256_storeu_si256(to, first);
      _mm256_storeu_si256(to + 1, second);
    }
  }
}

}  // namespace moebius
