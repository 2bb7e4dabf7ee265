// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the AMX and the AVX-512 tile kernels share: conversions, decoding units, scaled sums.
// Included by files built for AVX-512 BF16 only; everything is static, so that no other file can
// end up with these instructions.  Those built for FP16 are built for VBMI as well.  bf16
// conversions treat subnormals as zero, as the products do.
#pragma once

#include <immintrin.h>

#include "experts/cpu/tiles/tile_kernels.h"

namespace moebius::cpu {

// 16 values of C's dtype f32.
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

// A word per column twice, next to each other: what the two k of a pair are combined with.
static inline __m512i pair_words(__m512i dwords) {
  return _mm512_or_si512(_mm512_and_si512(dwords, _mm512_set1_epi32(0xffff)),
                         _mm512_slli_epi32(dwords, 16));
}
// A byte per column in the upper halves of its two words, zeros below.
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

// The same 16 words twice: permutations of words read 5 bits of an index.
static inline __m512i table16(const uint16_t (&table)[16]) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table));
  return _mm512_inserti64x4(_mm512_castsi256_si512(half), half, 1);
}

// 2^-8 of e4m3 codes whose sign is in bit 15 and the rest in bits 10 to 4, other bits being zero.
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

// Of pairs of rows (see kF8E4M3) the even one: its sign in bit 15, the rest in bits 10 to 4.
static inline __m512i e4m3_even_rows(__m512i codes) {
#ifdef __AVX512VBMI__
  // Per byte which eight bits of the eight bytes around it.
  const __m512i from = _mm512_set1_epi64(0x302f201f100f003f);
  return _mm512_multishift_epi64_epi8(from, codes);
#else
  const __mmask64 upper = 0xaaaaaaaaaaaaaaaa;
  return _mm512_mask_blend_epi8(upper, _mm512_slli_epi16(codes, 1), _mm512_slli_epi16(codes, 8));
#endif
}

// Moved to where bf16 has them, the bits of a normal number are 2^-8 of it with three more in the
// exponent.  `others`: see TileGemm; most pairs of rows have none.
static inline void decode_fp8(const std::byte* unit, uint16_t others, __m512i* out) {
  const __m512i kept = _mm512_set1_epi16(static_cast<short>(0x87f0));
  const __m512i exponent = _mm512_set1_epi16(0x3800);
  for (int pair = 0; pair < 16; ++pair) {
    const __m512i codes = _mm512_loadu_si512(unit + pair * 64);
    const __m512i even = e4m3_even_rows(codes);
    const __m512i odd = _mm512_srai_epi16(codes, 4);
    if ((others >> pair & 1) == 0) [[likely]] {
      // (row & kept) | exponent
      _mm512_store_si512(out + 2 * pair, _mm512_ternarylogic_epi64(even, kept, exponent, 0xea));
      _mm512_store_si512(out + 2 * pair + 1, _mm512_ternarylogic_epi64(odd, kept, exponent, 0xea));
    } else {
      _mm512_store_si512(out + 2 * pair, e4m3_words(_mm512_and_si512(even, kept)));
      _mm512_store_si512(out + 2 * pair + 1, e4m3_words(_mm512_and_si512(odd, kept)));
    }
  }
}

#ifdef __AVX512FP16__

// c + 128 in the lower byte of an f16 whose upper one is that of 1024 reads 1152 + c.  The
// difference is exact and never subnormal, so that its bits, moved to where bf16 has them, are
// 2^-112 of it.
static inline void decode_int8(const std::byte* unit, __m512i* out) {
  const __m512i above = _mm512_set1_epi8(0x64);
  const auto biased = (__m512h)_mm512_set1_epi16(0x6480);  // 1152
  const __m512i kept = _mm512_set1_epi16(static_cast<short>(0x8fff));
  const auto decode = [&](__m512i words) {
    const auto value = (__m512i)_mm512_sub_ph((__m512h)words, biased);
    return _mm512_and_si512(_mm512_srai_epi16(value, 3), kept);
  };
  for (int pair = 0; pair < 16; ++pair) {
    const __m512i codes = _mm512_loadu_si512(unit + pair * 64);
    _mm512_store_si512(out + 2 * pair, decode(_mm512_unpacklo_epi8(codes, above)));
    _mm512_store_si512(out + 2 * pair + 1, decode(_mm512_unpackhi_epi8(codes, above)));
  }
}

#else

static inline void decode_int8(const std::byte* unit, __m512i* out) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512 factor = _mm512_set1_ps(0x1p-112f);
  const auto to_f32 = [&](__m512i value) {
    return _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtepi32_ps(value), factor));
  };
  const auto decode = [&](__m512i words) {  // c + 128 in the upper byte, zero below
    const __m512i codes = _mm512_xor_si512(words, _mm512_set1_epi16(static_cast<short>(0x8000)));
    const __m512i even = to_f32(_mm512_srai_epi32(_mm512_slli_epi32(codes, 16), 24));
    const __m512i odd = to_f32(_mm512_srai_epi32(codes, 24));
    // (odd & high) | even >> 16
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(even, 16), odd, high, 0xf8);
  };
  const __m512i zero = _mm512_setzero_si512();
  for (int pair = 0; pair < 16; ++pair) {
    const __m512i codes = _mm512_loadu_si512(unit + pair * 64);
    _mm512_store_si512(out + 2 * pair, decode(_mm512_unpacklo_epi8(zero, codes)));
    _mm512_store_si512(out + 2 * pair + 1, decode(_mm512_unpackhi_epi8(zero, codes)));
  }
}

#endif  // __AVX512FP16__

// body(words, tile, row): words hold the codes of a tile row in their lowest four bits, and others
// above.
template <typename Body>
static inline void for_each_nibble_row(const std::byte* unit, Body body) {
  for (int block = 0; block < 8; ++block) {
    const __m512i words = _mm512_loadu_si512(unit + block * 64);
    const int row = block % 4 * 4;
    body(words, block / 4, row);
    body(_mm512_srli_epi16(words, 4), block / 4, row + 1);
    body(_mm512_srli_epi16(words, 8), block / 4, row + 2);
    body(_mm512_srli_epi16(words, 12), block / 4, row + 3);
  }
}

static inline void decode_int4(const std::byte* unit, const uint8_t* zero_points, __m512i* out) {
  if (zero_points == nullptr) {
    alignas(64) static constexpr uint16_t kValues[16] = {
        0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
        0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};  // -8 .. 7
    const __m512i values = table16(kValues);
    for_each_nibble_row(unit, [&](__m512i words, int tile, int row) {
      _mm512_store_si512(out + tile * 16 + row, _mm512_permutexvar_epi16(words, values));
    });
    return;
  }
  // Differences of two nibbles, -15 to 15, by their lowest five bits.
  alignas(64) static constexpr uint16_t kValues[32] = {
      0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
      0x4130, 0x4140, 0x4150, 0x4160, 0x4170, 0xc180, 0xc170, 0xc160, 0xc150, 0xc140, 0xc130,
      0xc120, 0xc110, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};
  const __m512i values = _mm512_load_si512(kValues);
  const __m512i zeros[2] = {pair_words(bytes_to_dwords(zero_points)),
                            pair_words(bytes_to_dwords(zero_points + 16))};
  const __m512i nibble = _mm512_set1_epi16(0xf);
  for_each_nibble_row(unit, [&](__m512i words, int tile, int row) {
    const __m512i difference = _mm512_sub_epi16(_mm512_and_si512(words, nibble), zeros[tile]);
    _mm512_store_si512(out + tile * 16 + row, _mm512_permutexvar_epi16(difference, values));
  });
}

// Scales are powers of two.  Values with the largest exponents that bf16 has, from which those of
// the scales' complement are subtracted: what saturates is zero, whose sign is left out for that.
// REQUIRES: scales of 1 to 252.
static inline void decode_mxfp4(const std::byte* unit, const std::byte* scales, __m512i* out) {
  alignas(64) static constexpr uint16_t kValues[16] = {
      0, 0x7d80, 0x7e00, 0x7e40, 0x7e80, 0x7ec0, 0x7f00, 0x7f40,
      0, 0xfd80, 0xfe00, 0xfe40, 0xfe80, 0xfec0, 0xff00, 0xff40};  // 2^125 times
  const __m512i values = table16(kValues);
  const auto exponents = [&](int tile) {
    const __m512i scale = _mm512_srli_epi16(bytes_above(scales + tile * 16), 1);
    return _mm512_sub_epi16(_mm512_set1_epi16((125 + 127) << 7), scale);
  };
  const __m512i missing[2] = {exponents(0), exponents(1)};
  for_each_nibble_row(unit, [&](__m512i words, int tile, int row) {
    _mm512_store_si512(out + tile * 16 + row,
                       _mm512_subs_epu16(_mm512_permutexvar_epi16(words, values), missing[tile]));
  });
}

#ifdef __AVX512FP16__

// Products of e2m1 and e4m3 are exact in f16.  The scale's bits read as f16 are 2^-8 of it, which
// the codes' values make up for; the product is never subnormal, so that its bits, moved to where
// bf16 has them, are 2^-112 of it.
static inline void decode_nvfp4(const std::byte* unit, const std::byte* scales, __m512i* out) {
  // The upper bytes of f16 numbers whose lower ones are zero.
  const __m512i values =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0x58, 0x5c, 0x5e, 0x60, 0x62, 0x64, 0x66, 0, '\xd8',
                                           '\xdc', '\xde', '\xe0', '\xe2', '\xe4', '\xe6'));
  const __mmask64 upper = 0xaaaaaaaaaaaaaaaa;
  const auto load = [&](int half, int tile) {
    const __m512i codes = bytes_above(scales + half * 32 + tile * 16);
    return (__m512h)_mm512_and_si512(_mm512_srai_epi16(codes, 1),
                                     _mm512_set1_epi16(static_cast<short>(0xbf80)));
  };
  const __m512h loaded[2][2] = {{load(0, 0), load(1, 0)}, {load(0, 1), load(1, 1)}};
  const __m512i kept = _mm512_set1_epi16(static_cast<short>(0x8fff));
  // The upper bytes begin with a code; of an index six bits are read, of which two are anything.
  const auto decode = [&](__m512i words, int tile, int row) {
    const auto code = (__m512h)_mm512_maskz_permutexvar_epi8(upper, words, values);
    const auto product = (__m512i)_mm512_mul_ph(code, loaded[tile][row / 8]);
    _mm512_store_si512(out + tile * 16 + row,
                       _mm512_and_si512(_mm512_srai_epi16(product, 3), kept));
  };
#pragma GCC unroll 8  // indices of rows and scales known: a third less time
  for (int block = 0; block < 8; ++block) {
    const __m512i words = _mm512_loadu_si512(unit + block * 64);
    const int row = block % 4 * 4;
    decode(_mm512_slli_epi16(words, 8), block / 4, row);
    decode(_mm512_slli_epi16(words, 4), block / 4, row + 1);
    decode(words, block / 4, row + 2);
    decode(_mm512_srli_epi16(words, 4), block / 4, row + 3);
  }
}

#else

// e2m1 is {1, 1.5} times a power of two; scale and 1.5 * scale are exact in bf16.
static inline void decode_nvfp4(const std::byte* unit, const std::byte* scales, __m512i* out) {
  constexpr uint16_t kIs15 = 1;
  constexpr uint16_t kIsZero = 2;
  constexpr uint16_t kSign = 0x8000;
  constexpr uint16_t kMoved = 0x10000 - (104 << 7);  // 2^-112 by way of scales that are 2^-8
  constexpr uint16_t kHalf = kMoved - (1 << 7);
  // What is added to the scale's bits, and two flags below.
  alignas(64) static constexpr uint16_t kAdded[16] = {kIsZero,
                                                      kHalf,
                                                      kMoved,
                                                      kMoved | kIs15,
                                                      kMoved + (1 << 7),
                                                      (kMoved + (1 << 7)) | kIs15,
                                                      kMoved + (2 << 7),
                                                      (kMoved + (2 << 7)) | kIs15,
                                                      kIsZero,
                                                      kSign ^ kHalf,
                                                      kSign ^ kMoved,
                                                      kSign ^ (kMoved | kIs15),
                                                      kSign ^ (kMoved + (1 << 7)),
                                                      kSign ^ ((kMoved + (1 << 7)) | kIs15),
                                                      kSign ^ (kMoved + (2 << 7)),
                                                      kSign ^ ((kMoved + (2 << 7)) | kIs15)};
  const __m512i table = table16(kAdded);
  struct Scale {
    __m512i once;
    __m512i half_more;  // to 1.5 times, less the flag
    __mmask32 not_zero;
  };
  const auto load = [&](int half, int tile) {
    const __m512i codes = bytes_above(scales + half * 32 + tile * 16);
    Scale s;
    s.once = e4m3_words(_mm512_and_si512(_mm512_srai_epi16(codes, 4),
                                         _mm512_set1_epi16(static_cast<short>(0x87f0))));
    const __m512 value = _mm512_castsi512_ps(_mm512_slli_epi32(s.once, 16));
    const __m512i more =
        _mm512_srli_epi32(_mm512_castps_si512(_mm512_mul_ps(value, _mm512_set1_ps(1.5f))), 16);
    s.half_more =
        _mm512_sub_epi16(_mm512_sub_epi16(pair_words(more), s.once), _mm512_set1_epi16(kIs15));
    s.not_zero = _mm512_test_epi16_mask(s.once, _mm512_set1_epi16(0x7fff));
    return s;
  };
  const Scale loaded[2][2] = {{load(0, 0), load(1, 0)}, {load(0, 1), load(1, 1)}};
  for_each_nibble_row(unit, [&](__m512i words, int tile, int row) {
    const Scale& scale = loaded[tile][row / 8];
    const __m512i added = _mm512_permutexvar_epi16(words, table);
    const __mmask32 is15 = _mm512_test_epi16_mask(added, _mm512_set1_epi16(kIs15));
    const __mmask32 kept =
        _mm512_testn_epi16_mask(added, _mm512_set1_epi16(kIsZero)) & scale.not_zero;
    __m512i value = _mm512_maskz_add_epi16(kept, scale.once, added);
    value = _mm512_mask_add_epi16(value, kept & is15, value, scale.half_more);
    _mm512_store_si512(out + tile * 16 + row, value);
  });
}

#endif  // __AVX512FP16__

// Unit `step` of a coded block as bf16 tiles.  REQUIRES: not kBF16, not kI8.
template <TileCode kCode>
static inline void decode_unit(const TileGemm& g, int64_t group, int64_t step, std::byte* out) {
  const std::byte* unit = g.units + step * unit_bytes(kCode);
  const std::byte* scales = g.step_scales + step * step_scale_bytes(kCode);
  auto* tiles = reinterpret_cast<__m512i*>(out);
  if constexpr (kCode == TileCode::kF8E4M3) {
    decode_fp8(unit, g.others[step], tiles);
  } else if constexpr (kCode == TileCode::kI8AsBF16) {
    decode_int8(unit, tiles);
  } else if constexpr (kCode == TileCode::kInt4) {
    decode_int4(unit, g.zero_points != nullptr ? g.zero_points + group * kBlockColumns : nullptr,
                tiles);
  } else if constexpr (kCode == TileCode::kMxfp4) {
    decode_mxfp4(unit, scales, tiles);
  } else {
    decode_nvfp4(unit, scales, tiles);
  }
}

// body.operator()<code>() for the code of a coded block.
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

// Some units, and lines of codes so many bytes ahead on their way to L1; past the end of the
// weights, too, as a prefetch may.  0: none.
template <int64_t kAhead = 0>
static inline void decode_units(
    const TileGemm& g, int64_t group, int64_t first, int64_t count, std::byte* out) {
  with_code(g.code, [&]<TileCode kCode>() {
    for (int64_t s = 0; s < count; ++s) {
      const std::byte* ahead = g.units + (first + s) * unit_bytes(kCode) + kAhead;
      for (int64_t line = 0; kAhead > 0 && line < unit_bytes(kCode); line += kTileRowBytes) {
        _mm_prefetch(reinterpret_cast<const char*>(ahead + line), _MM_HINT_T0);
      }
      decode_unit<kCode>(g, group, first + s, out + s * kStepBytes);
    }
  });
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

// c (+)= product * scales of `group`, for the rows of one panel.
static inline void add_scaled(const TileGemm& g,
                              int64_t group,
                              int64_t first_row,
                              int64_t rows,
                              const float* product,
                              float* c,
                              bool adds) {
  __m512 scales[2];
  for (int half = 0; half < 2; ++half) {
    scales[half] =
        _mm512_mul_ps(load_scales(g.group_scales, g.scale_dtype, group * kBlockColumns + half * 16),
                      _mm512_set1_ps(scale_factor(g.code)));
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r / kTileRows * 2 * kTileFloats + r % kTileRows * 16;
    for (int half = 0; half < 2; ++half) {
      __m512 scale = scales[half];
      if (g.row_scales != nullptr) {
        const float row_scale = g.row_scales[(first_row + r) * g.row_groups + group];
        scale = _mm512_mul_ps(scale, _mm512_set1_ps(row_scale));
      }
      float* sum = c + at + half * kTileFloats;
      const __m512 more = load16(product + at + half * kTileFloats);
      _mm512_storeu_ps(
          sum, adds ? _mm512_fmadd_ps(more, scale, load16(sum)) : _mm512_mul_ps(more, scale));
    }
  }
}

}  // namespace moebius::cpu
