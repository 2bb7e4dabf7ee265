// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Decodes codes to bf16 tiles in memory, as AMX multiplies them, with all scales of a step in them.
// Only the file built for AMX includes this header.
#pragma once

#include "experts/cpu/tiles/avx512_tiles.h"

namespace moebius::cpu {

// With c + 128 in its lower byte, and the upper byte of 1024, an f16 reads 1152 + c.  Subtracting
// 1152 is exact and the result is never subnormal.  So its bits, moved to where bf16 has them, are
// 2^-112 times c.
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

// Products of e2m1 and e4m3 are exact in f16.  A scale's bits read as f16 are 2^-8 times the scale,
// which the values of the codes make up for.  The product is never subnormal.  So its bits, moved
// to where bf16 has them, are 2^-112 times the product.
static inline void decode_nvfp4(const std::byte* unit, const std::byte* scales, __m512i* out) {
  // The upper bytes of f16 numbers whose lower bytes are zero.
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
  // The upper bytes begin with a code.  The instruction reads six bits of an index, two of which
  // are then arbitrary.
  const auto decode = [&](__m512i words, int tile, int row) {
    const auto code = (__m512h)_mm512_maskz_permutexvar_epi8(upper, words, values);
    const auto product = (__m512i)_mm512_mul_ph(code, loaded[tile][row / 8]);
    _mm512_store_si512(out + tile * 16 + row,
                       _mm512_and_si512(_mm512_srai_epi16(product, 3), kept));
  };
#pragma GCC unroll 8  // rows and scales then have constant indices, which saves a third of the time
  for (int block = 0; block < 8; ++block) {
    const __m512i words = _mm512_loadu_si512(unit + block * 64);
    const int row = block % 4 * 4;
    decode(_mm512_slli_epi16(words, 8), block / 4, row);
    decode(_mm512_slli_epi16(words, 4), block / 4, row + 1);
    decode(words, block / 4, row + 2);
    decode(_mm512_srli_epi16(words, 4), block / 4, row + 3);
  }
}

// Decodes unit `step` of a coded block to bf16 tiles.  REQUIRES: not kBF16, not kI8.
template <TileCode kCode>
static inline void decode_unit(const TileGemm& g, int64_t group, int64_t step, std::byte* out) {
  const std::byte* unit = g.units + step * unit_bytes(kCode);
  const std::byte* scales = g.step_scales + step * step_scale_bytes(kCode);
  auto* tiles = reinterpret_cast<__m512i*>(out);
  const auto store = [&](int row, __m512i left, __m512i right) {
    _mm512_store_si512(tiles + row, left);
    _mm512_store_si512(tiles + 16 + row, right);
  };
  if constexpr (kCode == TileCode::kF8E4M3) {
    decode_fp8(unit, g.others[step], store);
  } else if constexpr (kCode == TileCode::kI8AsBF16) {
    decode_int8(unit, tiles);
  } else if constexpr (kCode == TileCode::kInt4) {
    decode_int4(unit, zero_points_of(g, group), store);
  } else if constexpr (kCode == TileCode::kMxfp4) {
    decode_mxfp4(unit, scales, store);
  } else {
    decode_nvfp4(unit, scales, tiles);
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

// Sets c, or adds to it, product * scales of `group`, for the rows of one panel.
static inline void add_scaled(const TileGemm& g,
                              int64_t group,
                              int64_t first_row,
                              int64_t rows,
                              const float* product,
                              float* c,
                              bool adds) {
  const __m512 scales[2] = {load_group_scales(g, group, 0), load_group_scales(g, group, 1)};
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
