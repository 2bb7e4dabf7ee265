// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the AMX and the AVX-512 tile kernels share: decoding units, and what follows a product.
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

// The 16 values of `low`, then those of `high`.
static inline __m512i to_bf16(__m512 low, __m512 high) {
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}
static inline __m512 widen_words(__m512i words, const uint16_t (&from)[32]) {
  constexpr __mmask32 kUpperHalves = 0xaaaaaaaa;
  return _mm512_castsi512_ps(
      _mm512_maskz_permutexvar_epi16(kUpperHalves, _mm512_load_si512(from), words));
}
static inline __m512 widen_low(__m512i words) {
  alignas(64) static constexpr uint16_t kFrom[32] = {0, 0,  0, 1,  0, 2,  0, 3,  0, 4, 0,
                                                     5, 0,  6, 0,  7, 0,  8, 0,  9, 0, 10,
                                                     0, 11, 0, 12, 0, 13, 0, 14, 0, 15};
  return widen_words(words, kFrom);
}
static inline __m512 widen_high(__m512i words) {
  alignas(64) static constexpr uint16_t kFrom[32] = {0,  16, 0,  17, 0,  18, 0,  19, 0,  20, 0,
                                                     21, 0,  22, 0,  23, 0,  24, 0,  25, 0,  26,
                                                     0,  27, 0,  28, 0,  29, 0,  30, 0,  31};
  return widen_words(words, kFrom);
}

// A word per column twice, next to each other: what the two k of a pair are combined with.
static inline __m512i pair_words(__m512i dwords) {
  return _mm512_or_si512(_mm512_and_si512(dwords, _mm512_set1_epi32(0xffff)),
                         _mm512_slli_epi32(dwords, 16));
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

// body(words, row): the codes of a tile pair's row in the upper bytes; lower bytes are anything.
template <typename Body>
static inline void for_each_byte_row(const std::byte* unit, Body body) {
  for (int pair = 0; pair < 16; ++pair) {
    const __m512i words = _mm512_loadu_si512(unit + pair * 64);
    body(_mm512_slli_epi16(words, 8), 2 * pair);
    body(words, 2 * pair + 1);
  }
}

#ifdef __AVX512FP16__

// e4m3 read as f16, one bit lower, is 2^-8 of its value, subnormals included; with NaN left out.
static inline void decode_numbers(const std::byte* unit, __m512i* out) {
  const __m512h up = (__m512h)_mm512_set1_epi16(0x5c00);  // 256
  const __m512i f16_bits = _mm512_set1_epi16(static_cast<short>(0xbf80));
  const __m512i bf16_bits = _mm512_set1_epi16(static_cast<short>(0x8fff));
  const __m512i bias = _mm512_set1_epi16((127 - 15) << 7);
  for_each_byte_row(unit, [&](__m512i words, int row) {
    const __m512i f16 = _mm512_and_si512(_mm512_srai_epi16(words, 1), f16_bits);
    const auto value = (__m512i)_mm512_mul_ph((__m512h)f16, up);
    const __mmask32 not_zero = _mm512_test_epi16_mask(value, _mm512_set1_epi16(0x7fff));
    const __m512i moved = _mm512_and_si512(_mm512_srai_epi16(value, 3), bf16_bits);
    _mm512_store_si512(out + row, _mm512_maskz_add_epi16(not_zero, moved, bias));
  });
}

#endif  // __AVX512FP16__

static inline void decode_fp8(const std::byte* unit, [[maybe_unused]] bool has_nan, __m512i* out) {
#ifdef __AVX512FP16__
  if (!has_nan) {
    decode_numbers(unit, out);
    return;
  }
#endif
  for_each_byte_row(unit, [&](__m512i words, int row) {
    _mm512_store_si512(out + row, e4m3_words(_mm512_srli_epi16(words, 8)));
  });
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

// Scales are powers of two: added to the exponents.
static inline void decode_mxfp4(const std::byte* unit, const std::byte* scales, __m512i* out) {
  alignas(64) static constexpr uint16_t kValues[16] = {
      0,      0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0,
      0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
  const __m512i values = table16(kValues);
  const auto exponents = [&](int tile) {
    const __m512i code = bytes_to_dwords(scales + tile * 16);
    return pair_words(_mm512_slli_epi32(_mm512_sub_epi32(code, _mm512_set1_epi32(127)), 7));
  };
  const __m512i added[2] = {exponents(0), exponents(1)};
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  for_each_nibble_row(unit, [&](__m512i words, int tile, int row) {
    const __m512i value = _mm512_permutexvar_epi16(words, values);
    const __mmask32 not_zero = _mm512_test_epi16_mask(value, magnitude);
    _mm512_store_si512(out + tile * 16 + row,
                       _mm512_mask_add_epi16(value, not_zero, value, added[tile]));
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
    const __m512i codes = pair_words(bytes_to_dwords(scales + half * 32 + tile * 16));
    const __m512i magnitude =
        _mm512_slli_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(0x7f)), 7);
    return (__m512h)_mm512_ternarylogic_epi64(magnitude, _mm512_slli_epi16(codes, 8),
                                              _mm512_set1_epi16(static_cast<short>(0x8000)), 0xf8);
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

// x / (1 + e^-z).  e^t = 2^i * e^r with |r| <= ln2 / 2, by the series to r^6 (its rest is below
// 2e-7); the reciprocal by one Newton step.  NaN stays NaN.
static inline __m512 mul_sigmoid16(__m512 x, __m512 z) {
  __m512 t = _mm512_sub_ps(_mm512_setzero_ps(), z);
  t = _mm512_min_ps(_mm512_set1_ps(88.0f), t);
  t = _mm512_max_ps(_mm512_set1_ps(-87.0f), t);
  const __m512 i = _mm512_roundscale_ps(_mm512_mul_ps(t, _mm512_set1_ps(1.44269504f)), 0);
  __m512 r = _mm512_fnmadd_ps(i, _mm512_set1_ps(0.693359375f), t);
  r = _mm512_fnmadd_ps(i, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.0f / 720);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  const __m512 d = _mm512_add_ps(_mm512_set1_ps(1.0f), _mm512_scalef_ps(p, i));
  __m512 y = _mm512_rcp14_ps(d);
  y = _mm512_mul_ps(y, _mm512_fnmadd_ps(d, y, _mm512_set1_ps(2.0f)));
  return _mm512_mul_ps(x, y);
}

// The gate's part, before any rounding.  REQUIRES: kSilu, kGeluTanh or kRelu2.
static inline __m512 activate16(Activation kind, __m512 g) {
  if (kind == Activation::kSilu) {
    return mul_sigmoid16(g, g);
  }
  if (kind == Activation::kRelu2) {
    const __m512 positive = _mm512_max_ps(_mm512_setzero_ps(), g);
    return _mm512_mul_ps(positive, positive);
  }
  constexpr float kScale = 1.5957691216f;  // 2 sqrt(2 / pi)
  const __m512 cubic = _mm512_mul_ps(_mm512_mul_ps(g, g), g);
  const __m512 z = _mm512_fmadd_ps(cubic, _mm512_set1_ps(0.044715f), g);
  return mul_sigmoid16(g, _mm512_mul_ps(z, _mm512_set1_ps(kScale)));
}

static inline __m512 swiglu_oai16(const ActivationSpec& spec, __m512 g, __m512 u) {
  const __m512 limit = _mm512_set1_ps(spec.limit);
  g = _mm512_min_ps(limit, g);
  u = _mm512_max_ps(_mm512_set1_ps(-spec.limit), _mm512_min_ps(limit, u));
  const __m512 act = mul_sigmoid16(g, _mm512_mul_ps(g, _mm512_set1_ps(spec.alpha)));
  return _mm512_mul_ps(_mm512_add_ps(u, _mm512_set1_ps(1.0f)), act);
}

static inline void put16(const TileEpilogue& e, std::byte* out, __m512 v) {
  const __m256i bits = to_bf16(_mm512_mul_ps(v, _mm512_set1_ps(e.act_factor)));
  if (e.as_f32) {
    _mm512_storeu_ps(out, widen_bf16(bits));
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bits);
  }
}

// The first value of row r of C, and of the 16 columns that follow in the next tile.
static inline const float* c_row(const float* c, int64_t r) {
  return c + r / kTileRows * 2 * kTileFloats + r % kTileRows * 16;
}

// kIsSum: values are the sums themselves.
template <bool kIsSum>
static inline __m512 finish16(const TileEpilogue& e, const float* c, int64_t row, int64_t half) {
  if constexpr (kIsSum) {
    return load16(c + half * kTileFloats);
  }
  c += half * kTileFloats;
  __m512 v = e.integers ? _mm512_cvtepi32_ps(_mm512_loadu_si512(c)) : load16(c);
  if (e.row_scales != nullptr) {
    v = _mm512_mul_ps(v, _mm512_set1_ps(e.row_scales[row * e.scale_stride]));
  }
  if (e.column_scales != nullptr) {
    v = _mm512_mul_ps(v, load16(e.column_scales + half * 16));
  }
  if (e.bias != nullptr) {
    v = _mm512_add_ps(v, load16(e.bias + half * 16));
  }
  return v;
}

// One row of what is not gated, or of kSwigluOai.
static inline void activate_row(const TileEpilogue& e, __m512 left, __m512 right, std::byte* out) {
  const ActivationSpec& spec = *e.activation;
  left = round_bf16(left);
  right = round_bf16(right);
  if (!spec.gated) {
    put16(e, out, activate16(spec.kind, left));
    put16(e, out + (e.as_f32 ? 64 : 32), activate16(spec.kind, right));
  } else {
    put16(e, out, swiglu_oai16(spec, left, right));
  }
}

// Gated rows r, which is even, and r + 1 if that is below end: two of 16 values round as one of 32.
template <bool kIsSum>
static inline void activate_two(const TileEpilogue& e, const float* c, int64_t r, int64_t end) {
  const int64_t next = r + 1 < end ? r + 1 : r;
  const float* row = c_row(c, r);
  const float* next_row = c_row(c, next);
  const __m512i gate =
      to_bf16(finish16<kIsSum>(e, row, r, 0), finish16<kIsSum>(e, next_row, next, 0));
  const __m512i up =
      to_bf16(finish16<kIsSum>(e, row, r, 1), finish16<kIsSum>(e, next_row, next, 1));
  const Activation kind = e.activation->kind;
  const __m512i act =
      to_bf16(activate16(kind, widen_low(gate)), activate16(kind, widen_high(gate)));
  const __m512 factor = _mm512_set1_ps(e.act_factor);
  const __m512i words =
      to_bf16(_mm512_mul_ps(_mm512_mul_ps(widen_low(act), widen_low(up)), factor),
              _mm512_mul_ps(_mm512_mul_ps(widen_high(act), widen_high(up)), factor));
  // Where there is no r + 1, r is stored twice.
  std::byte* out = e.act_row(r);
  std::byte* next_out = out + (next - r) * e.row_stride;
  if (e.as_f32) {
    _mm512_storeu_ps(out, widen_low(words));
    _mm512_storeu_ps(next_out, widen_high(words));
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_castsi512_si256(words));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(next_out), _mm512_extracti64x4_epi64(words, 1));
  }
}

// A product rounded to bf16 and added to +0, subnormal or not.
static inline __m256i round_product16(__m512 product) {
  const __m512i bits = _mm512_castps_si512(product);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_and_si512(_mm512_add_epi32(bits, up), _mm512_set1_epi32(-0x10000));
  const __m512 sum = _mm512_add_ps(_mm512_castsi512_ps(rounded), _mm512_setzero_ps());
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(sum), 16));
}

// See TileEpilogue::weights.
static inline __m512i weighted(__m512i values, float weight) {
  constexpr int kSubnormal = 0x20;
  const __m512 low = _mm512_mul_ps(widen_low(values), _mm512_set1_ps(weight));
  const __m512 high = _mm512_mul_ps(widen_high(values), _mm512_set1_ps(weight));
  if (!_kortestz_mask16_u8(_mm512_fpclass_ps_mask(low, kSubnormal),
                           _mm512_fpclass_ps_mask(high, kSubnormal))) [[unlikely]] {
    return _mm512_inserti64x4(_mm512_castsi256_si512(round_product16(low)), round_product16(high),
                              1);
  }
  const __m512i rounded = to_bf16(low, high);
  const __m512i minus_zero = _mm512_set1_epi16(static_cast<short>(0x8000));
  return _mm512_maskz_mov_epi16(_mm512_cmpneq_epi16_mask(rounded, minus_zero), rounded);
}

template <bool kIsSum>
static inline void store_row(const TileEpilogue& e, const float* c, int64_t r) {
  const float* row = c_row(c, r);
  __m512i words = to_bf16(finish16<kIsSum>(e, row, r, 0), finish16<kIsSum>(e, row, r, 1));
  if (e.weights != nullptr) {
    words = weighted(words, e.weights[r]);
  }
  uint16_t* out = e.out[r] + e.column;
  if (e.past_caches) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out), words);
  } else {
    const auto kept = static_cast<__mmask32>((uint64_t{1} << e.columns) - 1);
    _mm512_mask_storeu_epi16(out, kept, words);
  }
}

template <bool kIsSum>
static inline void finish_rows_as(const TileEpilogue& e,
                                  const float* c,
                                  int64_t begin,
                                  int64_t end) {
  if (e.activation == nullptr) {
    for (int64_t r = begin; r < end; ++r) {
      store_row<kIsSum>(e, c, r);
    }
  } else if (e.activation->gated && e.activation->kind != Activation::kSwigluOai) {
    for (int64_t r = begin; r < end; r += 2) {
      activate_two<kIsSum>(e, c, r, end);
    }
  } else {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = c_row(c, r);
      activate_row(e, finish16<kIsSum>(e, row, r, 0), finish16<kIsSum>(e, row, r, 1), e.act_row(r));
    }
  }
}

// The epilogue of rows [begin, end).  After the last of a block: finish_stores.
// REQUIRES: begin is even.
static void finish_rows(const TileEpilogue& e, const float* c, int64_t begin, int64_t end) {
  if (e.activation != nullptr && e.activation->kind == Activation::kGelu) {
    finish_rows_portable(e, c, begin, end);
  } else if (e.integers || e.row_scales != nullptr || e.column_scales != nullptr ||
             e.bias != nullptr) {
    finish_rows_as<false>(e, c, begin, end);
  } else {
    finish_rows_as<true>(e, c, begin, end);
  }
}

// Makes streamed lines visible to whoever sees that the task is done.
static inline void finish_stores(const TileEpilogue& e) {
  if (e.past_caches) {
    _mm_sfence();
  }
}

}  // namespace moebius::cpu
