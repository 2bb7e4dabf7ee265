// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Decodes codes to rows of bf16 tiles in registers, as the AVX-512 kernels multiply them; the
// scales of nvfp4 are left to the sums that they belong to.  Only the file built for AVX-512 BF16
// and VBMI includes this header.
#pragma once

#include "experts/cpu/tiles/avx512_tiles.h"

namespace moebius::cpu {

// Each code + 128 becomes the lowest byte of an f32 whose other bytes are those of 2^-89.
// Subtracting what that gives for code 0 leaves 2^-112 times the code, exactly, in bf16 too.  Why
// the codes are not converted to floats: the factor 2^-112 would take one more instruction.
template <typename Emit>
static inline void decode_int8(const std::byte* unit, Emit emit) {
  alignas(64) static constexpr char kFrom[2][64] = {
      // These are elements 0 to 15 of row 2b; elements 16 to 31 stand 32 bytes on.
      {0,  0, 0, 0, 1,  0, 0, 0, 2,  0, 0,  0, 3,  0, 0,  0, 4,  0, 0,  0, 5, 0,
       0,  0, 6, 0, 0,  0, 7, 0, 0,  0, 16, 0, 0,  0, 17, 0, 0,  0, 18, 0, 0, 0,
       19, 0, 0, 0, 20, 0, 0, 0, 21, 0, 0,  0, 22, 0, 0,  0, 23, 0, 0,  0},
      {8,  0, 0,  0, 9,  0, 0,  0, 10, 0, 0,  0, 11, 0, 0,  0, 12, 0, 0,  0, 13, 0,
       0,  0, 14, 0, 0,  0, 15, 0, 0,  0, 24, 0, 0,  0, 25, 0, 0,  0, 26, 0, 0,  0,
       27, 0, 0,  0, 28, 0, 0,  0, 29, 0, 0,  0, 30, 0, 0,  0, 31, 0, 0,  0}};
  constexpr __mmask64 kLowest = 0x1111111111111111;
  const __m512i base = _mm512_castps_si512(_mm512_set1_ps(0x1p-89f));
  const __m512 zero = _mm512_set1_ps(0x1p-89f + 128 * 0x1p-112f);
  const __m512i second = _mm512_set1_epi8(32);
  const auto decode = [&](__m512i codes, __m512i from) {
    const auto value = [&](__m512i at) {
      return _mm512_sub_ps(
          _mm512_castsi512_ps(_mm512_mask_permutexvar_epi8(base, kLowest, at, codes)), zero);
    };
    return (__m512i)_mm512_cvtne2ps_pbh(value(_mm512_or_si512(from, second)), value(from));
  };
  for (int pair = 0; pair < 8; ++pair) {
    const __m512i left = _mm512_loadu_si512(unit + pair * 64);
    const __m512i right = _mm512_loadu_si512(unit + (8 + pair) * 64);
    for (int odd = 0; odd < 2; ++odd) {
      const __m512i from = _mm512_load_si512(kFrom[odd]);
      emit(2 * pair + odd, decode(left, from), decode(right, from));
    }
  }
}

// Loads 16 e4m3 scales as f32; NaN reads as 480.
static inline __m512 e4m3_scales(const std::byte* codes) {
  const __m512i above = _mm512_slli_epi32(bytes_to_dwords(codes), 24);
  const __m512i bits = _mm512_and_si512(_mm512_srai_epi32(above, 4),
                                        _mm512_set1_epi32(static_cast<int>(0x87f00000u)));
  return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120f));
}
// scale(left, right) gives the scales of the rows that were emitted since the last time, of 16
// columns each.
template <typename Emit, typename Scale>
static inline void decode_nvfp4(const std::byte* unit,
                                const std::byte* scales,
                                Emit emit,
                                Scale scale) {
  alignas(64) static constexpr uint16_t kValues[16] = {
      0,      0x0700, 0x0780, 0x07c0, 0x0800, 0x0840, 0x0880, 0x08c0,
      0x8000, 0x8700, 0x8780, 0x87c0, 0x8800, 0x8840, 0x8880, 0x88c0};  // 2^-112 times
  const __m512i values = table16(kValues);
  for (int half = 0; half < 2; ++half) {
    for_each_nibble_row(unit, 2 * half, 2 * half + 2, [&](int row, __m512i left, __m512i right) {
      emit(row, _mm512_permutexvar_epi16(left, values), _mm512_permutexvar_epi16(right, values));
    });
    const std::byte* of_half = scales + half * kBlockColumns;
    scale(e4m3_scales(of_half), e4m3_scales(of_half + 16));
  }
}

// Decodes unit `step` of a coded block.  REQUIRES: not kBF16, not kI8.
template <TileCode kCode, typename Emit, typename Scale>
static inline void decode_unit(
    const TileGemm& g, int64_t group, int64_t step, Emit emit, Scale scale) {
  const std::byte* unit = g.units + step * unit_bytes(kCode);
  const std::byte* scales = g.step_scales + step * step_scale_bytes(kCode);
  if constexpr (kCode == TileCode::kF8E4M3) {
    decode_fp8(unit, g.others[step], emit);
  } else if constexpr (kCode == TileCode::kI8AsBF16) {
    decode_int8(unit, emit);
  } else if constexpr (kCode == TileCode::kInt4) {
    decode_int4(unit, zero_points_of(g, group), emit);
  } else if constexpr (kCode == TileCode::kMxfp4) {
    decode_mxfp4(unit, scales, emit);
  } else {
    decode_nvfp4(unit, scales, emit, scale);
  }
}

}  // namespace moebius::cpu
