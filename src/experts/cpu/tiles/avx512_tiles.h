// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the AMX and the AVX-512 tile kernels share: conversions, decoding units, scaled sums.
// Included by files built for AVX-512 BF16 only; everything is static, so that no other file can
// end up with these instructions.  bf16 conversions treat subnormals as zero, as the products do.
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

// e4m3 codes in words to bf16.
static inline __m512i e4m3_words(__m512i w) {
  alignas(64) static constexpr uint16_t kSubnormal[16] = {
      0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60,
      0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
  const __m512i magnitude = _mm512_slli_epi16(_mm512_and_si512(w, _mm512_set1_epi16(0x7f)), 4);
  const __mmask32 is_subnormal = _mm512_testn_epi16_mask(w, _mm512_set1_epi16(0x78));
  const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f0));
  __m512i t = _mm512_add_epi16(magnitude, _mm512_set1_epi16(0x3c00));
  t = _mm512_mask_permutexvar_epi16(t, is_subnormal, w, table16(kSubnormal));
  t = _mm512_mask_mov_epi16(t, is_nan, _mm512_set1_epi16(0x7fc0));
  // t | (w << 8 & sign)
  return _mm512_ternarylogic_epi64(t, _mm512_slli_epi16(w, 8),
                                   _mm512_set1_epi16(static_cast<short>(0x8000)), 0xf8);
}

// e4m3 codes in the upper bytes of words, all normal numbers; lower bytes are anything.
static inline __m512i e4m3_normals(__m512i words) {
  const __m512i kept = _mm512_set1_epi16(static_cast<short>(0x87f0));
  const __m512i bias = _mm512_set1_epi16((127 - 7) << 7);
  return _mm512_add_epi16(_mm512_and_si512(_mm512_srai_epi16(words, 4), kept), bias);
}

// Why normal numbers have a way of their own: most rows are nothing else, and it takes half of the
// instructions.  They include NaN, so has_nan says whether there is any.
static inline void decode_fp8(const std::byte* unit, bool has_nan, __m512i* out) {
  const __m512i exponent = _mm512_set1_epi8(0x78);
  for (int pair = 0; pair < 16; ++pair) {
    const __m512i codes = _mm512_loadu_si512(unit + pair * 64);
    const bool are_normal = !has_nan && _mm512_testn_epi8_mask(codes, exponent) == 0;
    if (are_normal) [[likely]] {
      _mm512_store_si512(out + 2 * pair, e4m3_normals(_mm512_slli_epi16(codes, 8)));
      _mm512_store_si512(out + 2 * pair + 1, e4m3_normals(codes));
    } else {
      _mm512_store_si512(out + 2 * pair,
                         e4m3_words(_mm512_and_si512(codes, _mm512_set1_epi16(0xff))));
      _mm512_store_si512(out + 2 * pair + 1, e4m3_words(_mm512_srli_epi16(codes, 8)));
    }
  }
}

static inline void decode_int8(const std::byte* unit, __m512i* out) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  for (int row = 0; row < 32; ++row) {
    const auto* codes = reinterpret_cast<const __m128i*>(unit + row * 32);
    const __m512 even = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes)));
    const __m512 odd = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes + 1)));
    // (odd & high) | even >> 16
    _mm512_store_si512(out + row,
                       _mm512_ternarylogic_epi32(_mm512_srli_epi32(_mm512_castps_si512(even), 16),
                                                 _mm512_castps_si512(odd), high, 0xf8));
  }
}

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
  alignas(64) static constexpr uint16_t kValues[16] = {
      0, 0x5800, 0x5c00, 0x5e00, 0x6000, 0x6200, 0x6400, 0x6600,
      0, 0xd800, 0xdc00, 0xde00, 0xe000, 0xe200, 0xe400, 0xe600};
  const __m512i values = table16(kValues);
  const auto load = [&](int half, int tile) {
    const __m512i codes = bytes_above(scales + half * 32 + tile * 16);
    return (__m512h)_mm512_and_si512(_mm512_srai_epi16(codes, 1),
                                     _mm512_set1_epi16(static_cast<short>(0xbf80)));
  };
  const __m512h loaded[2][2] = {{load(0, 0), load(1, 0)}, {load(0, 1), load(1, 1)}};
  const __m512i kept = _mm512_set1_epi16(static_cast<short>(0x8fff));
  for_each_nibble_row(unit, [&](__m512i words, int tile, int row) {
    const auto code = (__m512h)_mm512_permutexvar_epi16(words, values);
    const auto product = (__m512i)_mm512_mul_ph(code, loaded[tile][row / 8]);
    _mm512_store_si512(out + tile * 16 + row,
                       _mm512_and_si512(_mm512_srai_epi16(product, 3), kept));
  });
}

#else

// e2m1 is {1, 1.5} times a power of two; scale and 1.5 * scale are exact in bf16.
static inline void decode_nvfp4(const std::byte* unit, const std::byte* scales, __m512i* out) {
  constexpr uint16_t kIs15 = 1;
  constexpr uint16_t kIsZero = 2;
  constexpr uint16_t kSign = 0x8000;
  constexpr uint16_t kMoved = 0x10000 - (112 << 7);  // 2^-112
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
    const __m512i codes = bytes_to_dwords(scales + half * 32 + tile * 16);
    const __m512i once = _mm512_and_si512(e4m3_words(codes), _mm512_set1_epi32(0xffff));
    const __m512 value = _mm512_castsi512_ps(_mm512_slli_epi32(once, 16));
    const __m512i more =
        _mm512_srli_epi32(_mm512_castps_si512(_mm512_mul_ps(value, _mm512_set1_ps(1.5f))), 16);
    Scale s;
    s.once = pair_words(once);
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
    decode_fp8(unit, g.has_nan, tiles);
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

static inline void decode_units(
    const TileGemm& g, int64_t group, int64_t first, int64_t count, std::byte* out) {
  with_code(g.code, [&]<TileCode kCode>() {
    for (int64_t s = 0; s < count; ++s) {
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
    scales[half] = load_scales(g.group_scales, g.scale_dtype, group * kBlockColumns + half * 16);
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
