// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The AMX and the AVX-512 tile kernels share these: conversions, scales, and codes whose tiles both
// read alike.  Only files built for AVX-512 BF16 and VBMI include this header.  Everything is
// static, so that no other file can end up with these instructions.  bf16 conversions treat
// subnormals as zero, as the products do.
#pragma once

#include <immintrin.h>

#include "experts/cpu/tiles/tile_kernels.h"

namespace moebius::cpu {

// Loads 16 values of C, which are f32.
static inline __m512 load16(const float* p) {
  return _mm512_loadu_ps(p);
}

static inline __m256i to_bf16(__m512 v) {
  return (__m256i)_mm512_cvtneps_pbh(v);
}
static inline __m512 widen_bf16(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
static inline __m512 round_bf16(__m512 v) {
  return widen_bf16(to_bf16(v));
}

// Doubles the word of each column, for the two k of a pair that it is combined with.
static inline __m512i pair_words(__m512i dwords) {
  return _mm512_or_si512(_mm512_and_si512(dwords, _mm512_set1_epi32(0xffff)),
                         _mm512_slli_epi32(dwords, 16));
}
// Puts the byte of each column into the upper halves of the column's two words, with zeros below.
static inline __m512i bytes_above(const void* bytes) {
  constexpr char z = -128;  // gives zero
  alignas(64) static constexpr char kOrder[64] = {
      z, 0,  z, 0,  z, 1,  z, 1,  z, 2,  z, 2,  z, 3,  z, 3,  z, 4,  z, 4,  z, 5,
      z, 5,  z, 6,  z, 6,  z, 7,  z, 7,  z, 8,  z, 8,  z, 9,  z, 9,  z, 10, z, 10,
      z, 11, z, 11, z, 12, z, 12, z, 13, z, 13, z, 14, z, 14, z, 15, z, 15};
  const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(bytes)));
  return _mm512_shuffle_epi8(all, _mm512_load_si512(kOrder));
}

static inline __m512i bytes_to_dwords(const void* bytes) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(bytes)));
}

// Loads the same 16 words twice: permutations of words read 5 bits of an index.
static inline __m512i table16(const uint16_t (&table)[16]) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table));
  return _mm512_inserti64x4(_mm512_castsi256_si512(half), half, 1);
}

// 2^-8 times the values of e4m3 codes whose sign is in bit 15 and whose other bits are bits 10 to 4
// of a word; the word's remaining bits are zero.
static inline __m512i e4m3_words(__m512i w) {
  alignas(64) static constexpr uint16_t kSubnormal[16] = {
      0, 0x3700, 0x3780, 0x37c0, 0x3800, 0x3820, 0x3840, 0x3860,
      0, 0x3700, 0x3780, 0x37c0, 0x3800, 0x3820, 0x3840, 0x3860};
  const __m512i sign = _mm512_set1_epi16(static_cast<short>(0x8000));
  const __m512i magnitude = _mm512_andnot_si512(sign, w);
  const __mmask32 is_subnormal = _mm512_testn_epi16_mask(w, _mm512_set1_epi16(0x780));
  const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f0));
  __m512i t = _mm512_or_si512(magnitude, _mm512_set1_epi16(0x3800));
  t = _mm512_mask_permutexvar_epi16(t, is_subnormal, _mm512_srli_epi16(magnitude, 4),
                                    table16(kSubnormal));
  t = _mm512_mask_mov_epi16(t, is_nan, _mm512_set1_epi16(0x7fc0));
  return _mm512_ternarylogic_epi64(t, w, sign, 0xf8);  // t | (w & sign)
}

// The even rows of pairs (see kF8E4M3): a code's sign is in bit 15, its other bits are bits 10
// to 4.
static inline __m512i e4m3_even_rows(__m512i codes) {
  // Each byte says from which bit of its eight bytes on the eight bits of the result are taken.
  const __m512i from = _mm512_set1_epi64(0x302f201f100f003f);
  return _mm512_multishift_epi64_epi8(from, codes);
}

// Units are decoded row by row of both tiles: emit(row, values of the left one, of the right one).

// The bits of a normal number, moved to where bf16 has them, with three more bits set in the
// exponent, are 2^-8 times the number.  `others` (see TileGemm) names the pairs of rows with other
// numbers; most have none.
template <typename Emit>
static inline void decode_fp8(const std::byte* unit, uint16_t others, Emit emit) {
  const __m512i kept = _mm512_set1_epi16(static_cast<short>(0x87f0));
  const __m512i exponent = _mm512_set1_epi16(0x3800);
  const auto normal = [&](__m512i row) {  // (row & kept) | exponent
    return _mm512_ternarylogic_epi64(row, kept, exponent, 0xea);
  };
  const auto any = [&](__m512i row) { return e4m3_words(_mm512_and_si512(row, kept)); };
  for (int pair = 0; pair < 8; ++pair) {
    const __m512i left = _mm512_loadu_si512(unit + pair * 64);
    const __m512i right = _mm512_loadu_si512(unit + (8 + pair) * 64);
    const __m512i odd_left = _mm512_srai_epi16(left, 4);
    const __m512i odd_right = _mm512_srai_epi16(right, 4);
    if ((others >> pair & 0x101) == 0) [[likely]] {
      emit(2 * pair, normal(e4m3_even_rows(left)), normal(e4m3_even_rows(right)));
      emit(2 * pair + 1, normal(odd_left), normal(odd_right));
    } else {
      emit(2 * pair, any(e4m3_even_rows(left)), any(e4m3_even_rows(right)));
      emit(2 * pair + 1, any(odd_left), any(odd_right));
    }
  }
}

// Calls body(row, left, right) for the rows of blocks [begin, end).  The words have the codes of a
// tile row in their lowest four bits, and other codes above.
template <typename Body>
static inline void for_each_nibble_row(const std::byte* unit, int begin, int end, Body body) {
  for (int block = begin; block < end; ++block) {
    const __m512i left = _mm512_loadu_si512(unit + block * 64);
    const __m512i right = _mm512_loadu_si512(unit + 256 + block * 64);
    body(block * 4, left, right);
    body(block * 4 + 1, _mm512_srli_epi16(left, 4), _mm512_srli_epi16(right, 4));
    body(block * 4 + 2, _mm512_srli_epi16(left, 8), _mm512_srli_epi16(right, 8));
    body(block * 4 + 3, _mm512_srli_epi16(left, 12), _mm512_srli_epi16(right, 12));
  }
}

template <typename Emit>
static inline void decode_int4(const std::byte* unit, const uint8_t* zero_points, Emit emit) {
  if (zero_points == nullptr) {
    alignas(64) static constexpr uint16_t kValues[16] = {
        0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
        0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};  // -8 .. 7
    const __m512i values = table16(kValues);
    for_each_nibble_row(unit, 0, 4, [&](int row, __m512i left, __m512i right) {
      emit(row, _mm512_permutexvar_epi16(left, values), _mm512_permutexvar_epi16(right, values));
    });
    return;
  }
  // The differences of two nibbles, -15 to 15, indexed by their lowest five bits.
  alignas(64) static constexpr uint16_t kValues[32] = {
      0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
      0x4130, 0x4140, 0x4150, 0x4160, 0x4170, 0xc180, 0xc170, 0xc160, 0xc150, 0xc140, 0xc130,
      0xc120, 0xc110, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};
  const __m512i values = _mm512_load_si512(kValues);
  const __m512i zeros_left = pair_words(bytes_to_dwords(zero_points));
  const __m512i zeros_right = pair_words(bytes_to_dwords(zero_points + 16));
  const __m512i nibble = _mm512_set1_epi16(0xf);
  const auto value = [&](__m512i words, __m512i zeros) {
    const __m512i difference = _mm512_sub_epi16(_mm512_and_si512(words, nibble), zeros);
    return _mm512_permutexvar_epi16(difference, values);
  };
  for_each_nibble_row(unit, 0, 4, [&](int row, __m512i left, __m512i right) {
    emit(row, value(left, zeros_left), value(right, zeros_right));
  });
}

// Scales are powers of two.  The table has the values with the largest exponents of bf16; what the
// scale lacks is then subtracted from their exponents.  The subtraction saturates for zero only,
// which therefore has no sign.  REQUIRES: scales of 1 to 252.
template <typename Emit>
static inline void decode_mxfp4(const std::byte* unit, const std::byte* scales, Emit emit) {
  alignas(64) static constexpr uint16_t kValues[16] = {
      0, 0x7d80, 0x7e00, 0x7e40, 0x7e80, 0x7ec0, 0x7f00, 0x7f40,
      0, 0xfd80, 0xfe00, 0xfe40, 0xfe80, 0xfec0, 0xff00, 0xff40};  // 2^125 times
  const __m512i values = table16(kValues);
  const auto exponents = [&](int tile) {
    const __m512i scale = _mm512_srli_epi16(bytes_above(scales + tile * 16), 1);
    return _mm512_sub_epi16(_mm512_set1_epi16((125 + 127) << 7), scale);
  };
  const __m512i missing_left = exponents(0);
  const __m512i missing_right = exponents(1);
  for_each_nibble_row(unit, 0, 4, [&](int row, __m512i left, __m512i right) {
    emit(row, _mm512_subs_epu16(_mm512_permutexvar_epi16(left, values), missing_left),
         _mm512_subs_epu16(_mm512_permutexvar_epi16(right, values), missing_right));
  });
}

// The zero points of a group of a block, or null.
static inline const uint8_t* zero_points_of(const TileGemm& g, int64_t group) {
  return g.zero_points != nullptr ? g.zero_points + group * kBlockColumns : nullptr;
}

// Calls body.operator()<code>() for the code of a coded block.
template <typename Body>
static inline void with_code(TileCode code, Body body) {
  switch (code) {
    case TileCode::kF8E4M3:
      return body.template operator()<TileCode::kF8E4M3>();
    case TileCode::kI8AsBF16:
      return body.template operator()<TileCode::kI8AsBF16>();
    case TileCode::kInt4:
      return body.template operator()<TileCode::kInt4>();
    case TileCode::kMxfp4:
      return body.template operator()<TileCode::kMxfp4>();
    default:
      return body.template operator()<TileCode::kNvfp4>();
  }
}

static inline __m512 load_scales(const std::byte* scales, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kBF16:
      return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales + i * 2)));
    case DType::kF16:
      return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales + i * 2)));
    case DType::kE8M0: {
      const __m512i codes = bytes_to_dwords(scales + i);
      // 2^-127 is subnormal in f32; 255 is NaN.
      const __mmask16 is_least = _mm512_testn_epi32_mask(codes, codes);
      const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(codes, _mm512_set1_epi32(255));
      __m512i bits = _mm512_slli_epi32(codes, 23);
      bits = _mm512_mask_mov_epi32(bits, is_least, _mm512_set1_epi32(0x00400000));
      bits = _mm512_mask_mov_epi32(bits, is_nan, _mm512_set1_epi32(0x7fc00000));
      return _mm512_castsi512_ps(bits);
    }
    default:
      return _mm512_loadu_ps(scales + i * 4);
  }
}

// The scales of 16 columns of a group, times the factor that codes of this kind need.
static inline __m512 load_group_scales(const TileGemm& g, int64_t group, int64_t half) {
  return _mm512_mul_ps(
      load_scales(g.group_scales, g.scale_dtype, group * kBlockColumns + half * 16),
      _mm512_set1_ps(scale_factor(g.code, Operand::kBF16)));
}

}  // namespace moebius::cpu
