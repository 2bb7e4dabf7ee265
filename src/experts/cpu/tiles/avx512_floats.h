// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Decodes codes to f32 in registers, for Intel's processors: there vdpbf16ps takes as long as four
// multiply-adds of f32, and its result is that of two, of the odd k and then of the even k.  Only
// the file built for AVX-512 BF16 and VBMI includes this header.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/cpu_features.h"
#include "experts/cpu/tiles/avx512_codes.h"

namespace moebius::cpu {

namespace avx512 {
namespace {

// A tile row, whose 16 columns have two k each.
struct FloatRow {
  __m512 even;
  __m512 odd;
};

inline FloatRow widen_row(__m512i bf16) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bf16, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(bf16, upper))};
}

// A line of a panel as f32: the values of 16 even k, then those of 16 odd k.
constexpr size_t kWideFloats = 32;

// Widens the lines of some steps of kRows rows, row by row of each step.
template <size_t kRows>
inline void widen_lines(const std::byte* a, int64_t steps, float* wide) {
  for (int64_t s = 0; s < steps; ++s, a += kStepBytes) {
    for (size_t r = 0; r < kRows; ++r, wide += kWideFloats) {
      const FloatRow row = widen_row(_mm512_loadu_si512(a + r * kTileRowBytes));
      _mm512_store_ps(wide, row.even);
      _mm512_store_ps(wide + 16, row.odd);
    }
  }
}

// Makes f32 operations treat subnormals as zero, as bf16 products do.  Weights in bf16 need it.
class FlushSubnormals {
 public:
  FlushSubnormals() { _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON | 0x40); }  // 0x40: of operands
  ~FlushSubnormals() { _mm_setcsr(before_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  unsigned before_ = _mm_getcsr();
};

// Whether f32 products are the faster ones here.  A single row gains where decoding to f32 takes
// fewer instructions than decoding to bf16 does.
template <TileCode kCode>
bool prefers_f32_products(int64_t rows) {
  static const bool is_intel = cpu_features().intel;
  constexpr bool kIsShorter =
      kCode == TileCode::kInt4 || kCode == TileCode::kNvfp4 || kCode == TileCode::kI8AsBF16;
  return is_intel && (kIsShorter || rows > 1);
}

// The least exponent, as bf16 has it, of activations other than 0 with which no sum is subnormal: a
// sum is a multiple of the lowest bit of an activation (2^(exponent - 134)) times that of a weight.
// Such sums have the same bits by either kind of products.  Why scales of groups are not counted:
// they are applied to sums, and alike.
template <TileCode kCode>
int least_exponent(const TileGemm& g) {
  if constexpr (kCode == TileCode::kInt4) {
    return 8;
  } else if constexpr (kCode == TileCode::kI8AsBF16) {
    return 8 + 112;
  } else if constexpr (kCode == TileCode::kNvfp4) {
    return 8 + 113;
  } else if constexpr (kCode == TileCode::kF8E4M3) {
    return 8 + 17;
  } else {
    __m256i least = _mm256_set1_epi8(-1);
    for (int64_t step = 0; step < g.steps; ++step) {
      const std::byte* scales = g.step_scales + step * step_scale_bytes(kCode);
      least = _mm256_min_epu8(least, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)));
    }
    return 8 + 128 -
           static_cast<int>(_mm512_reduce_min_epu32(_mm512_cvtepu8_epi32(
               _mm_min_epu8(_mm256_castsi256_si128(least), _mm256_extracti128_si256(least, 1)))));
  }
}

// Whether f32 products, which do not treat subnormals as zero, have the bits of bf16 products.
template <TileCode kCode>
bool has_same_bits_in_f32(const TileGemm& g) {
  // Twice the bits of a value have no sign; less one they are the largest number for zero.
  const __m512i one = _mm512_set1_epi16(1);
  __m512i least = _mm512_set1_epi16(-1);
  for (int64_t r = 0; r < g.rows; ++r) {
    const std::byte* line =
        g.a + r / kPanelRows * g.steps * kStepBytes + r % kPanelRows * kTileRowBytes;
    for (int64_t step = 0; step < g.steps; ++step) {
      const __m512i bits = _mm512_loadu_si512(line + step * kStepBytes);
      least = _mm512_min_epu16(least, _mm512_sub_epi16(_mm512_add_epi16(bits, bits), one));
    }
  }
  const auto limit = static_cast<short>(std::clamp(least_exponent<kCode>(g), 1, 255) << 8);
  return _mm512_cmplt_epu16_mask(least, _mm512_sub_epi16(_mm512_set1_epi16(limit), one)) == 0;
}

// The codes of a tile row, in the lowest four bits of dwords; other codes are above.
struct NibbleRow {
  __m512i even;
  __m512i odd;
};
// Calls body(row, codes of the left tile, of the right one) for the rows of blocks [begin, end).
// Loads that begin at a later byte take the place of half of the shifts.
template <typename Body>
inline void for_each_nibble_pair(const std::byte* unit, int begin, int end, Body body) {
  const auto low = [](const std::byte* at) {
    return NibbleRow{_mm512_loadu_si512(at), _mm512_loadu_si512(at + 2)};
  };
  const auto high = [](const NibbleRow& row) {
    return NibbleRow{_mm512_srli_epi32(row.even, 4), _mm512_srli_epi32(row.odd, 4)};
  };
  for (int block = begin; block < end; ++block) {
    for (int half = 0; half < 2; ++half) {
      const std::byte* at = unit + block * 64 + half;
      const NibbleRow left = low(at);
      const NibbleRow right = low(at + 256);
      body(block * 4 + half * 2, left, right);
      body(block * 4 + half * 2 + 1, high(left), high(right));
    }
  }
}

inline FloatRow look_up(const NibbleRow& codes, __m512 values) {
  return {_mm512_permutexvar_ps(codes.even, values), _mm512_permutexvar_ps(codes.odd, values)};
}

template <typename Emit>
inline void decode_int4_to_floats(const std::byte* unit, const uint8_t* zero_points, Emit emit) {
  const __m512 codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  if (zero_points == nullptr) {
    const __m512 values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    for_each_nibble_pair(unit, 0, 4, [&](int row, const NibbleRow& left, const NibbleRow& right) {
      emit(row, look_up(left, values), look_up(right, values));
    });
    return;
  }
  const auto value = [&](const NibbleRow& nibbles, __m512 zeros) {
    const FloatRow row = look_up(nibbles, codes);
    return FloatRow{_mm512_sub_ps(row.even, zeros), _mm512_sub_ps(row.odd, zeros)};
  };
  const __m512 zeros_left = _mm512_cvtepi32_ps(bytes_to_dwords(zero_points));
  const __m512 zeros_right = _mm512_cvtepi32_ps(bytes_to_dwords(zero_points + 16));
  for_each_nibble_pair(unit, 0, 4, [&](int row, const NibbleRow& left, const NibbleRow& right) {
    emit(row, value(left, zeros_left), value(right, zeros_right));
  });
}

// As decode_int8, but without rounding to bf16.
template <typename Emit>
inline void decode_int8_to_floats(const std::byte* unit, Emit emit) {
  // The bytes of the even k of row 2b; those of odd k stand one byte on, those of row 2b + 1 eight.
  const __m512i from =
      _mm512_setr_epi32(0, 2, 4, 6, 16, 18, 20, 22, 32, 34, 36, 38, 48, 50, 52, 54);
  constexpr __mmask64 kLowest = 0x1111111111111111;
  const __m512i base = _mm512_castps_si512(_mm512_set1_ps(0x1p-89f));
  const __m512 zero = _mm512_set1_ps(0x1p-89f + 128 * 0x1p-112f);
  const auto values = [&](__m512i codes, int at) {
    const __m512i bytes = _mm512_add_epi32(from, _mm512_set1_epi32(at));
    return _mm512_sub_ps(
        _mm512_castsi512_ps(_mm512_mask_permutexvar_epi8(base, kLowest, bytes, codes)), zero);
  };
  for (int pair = 0; pair < 8; ++pair) {
    const __m512i left = _mm512_loadu_si512(unit + pair * 64);
    const __m512i right = _mm512_loadu_si512(unit + (8 + pair) * 64);
    for (int odd = 0; odd < 2; ++odd) {
      emit(2 * pair + odd, FloatRow{values(left, 8 * odd), values(left, 8 * odd + 1)},
           FloatRow{values(right, 8 * odd), values(right, 8 * odd + 1)});
    }
  }
}

inline __m512 e2m1_values() {
  return _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6);
}

template <typename Emit>
inline void decode_mxfp4_to_floats(const std::byte* unit, const std::byte* scales, Emit emit) {
  const __m512 values = e2m1_values();
  const auto scale = [&](int tile) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(bytes_to_dwords(scales + tile * 16), 23));
  };
  const auto value = [&](const NibbleRow& codes, __m512 factor) {
    const FloatRow row = look_up(codes, values);
    return FloatRow{_mm512_mul_ps(row.even, factor), _mm512_mul_ps(row.odd, factor)};
  };
  const __m512 scale_left = scale(0);
  const __m512 scale_right = scale(1);
  for_each_nibble_pair(unit, 0, 4, [&](int row, const NibbleRow& left, const NibbleRow& right) {
    emit(row, value(left, scale_left), value(right, scale_right));
  });
}

template <typename Emit, typename Scale>
inline void decode_nvfp4_to_floats(const std::byte* unit,
                                   const std::byte* scales,
                                   Emit emit,
                                   Scale scale) {
  const __m512 values = _mm512_mul_ps(e2m1_values(), _mm512_set1_ps(0x1p-112f));
  for (int half = 0; half < 2; ++half) {
    for_each_nibble_pair(unit, 2 * half, 2 * half + 2,
                         [&](int row, const NibbleRow& left, const NibbleRow& right) {
                           emit(row, look_up(left, values), look_up(right, values));
                         });
    const std::byte* of_half = scales + half * kBlockColumns;
    scale(e4m3_scales(of_half), e4m3_scales(of_half + 16));
  }
}

// Decodes unit `step` of a coded block as decode_unit does, but to f32.
template <TileCode kCode, typename Emit, typename Scale>
inline void decode_unit_to_floats(
    const TileGemm& g, int64_t group, int64_t step, Emit emit, Scale scale) {
  const std::byte* unit = g.units + step * unit_bytes(kCode);
  const std::byte* scales = g.step_scales + step * step_scale_bytes(kCode);
  if constexpr (kCode == TileCode::kInt4) {
    decode_int4_to_floats(unit, zero_points_of(g, group), emit);
  } else if constexpr (kCode == TileCode::kMxfp4) {
    decode_mxfp4_to_floats(unit, scales, emit);
  } else if constexpr (kCode == TileCode::kNvfp4) {
    decode_nvfp4_to_floats(unit, scales, emit, scale);
  } else if constexpr (kCode == TileCode::kI8AsBF16) {
    decode_int8_to_floats(unit, emit);
  } else if constexpr (kCode == TileCode::kBF16) {
#pragma GCC unroll 16  // the chain of each row is then a constant
    for (int row = 0; row < kTileRows; ++row) {
      emit(row, widen_row(_mm512_loadu_si512(unit + row * kTileRowBytes)),
           widen_row(_mm512_loadu_si512(unit + kTileBytes + row * kTileRowBytes)));
    }
  } else {
    decode_unit<kCode>(
        g, group, step,
        [&](int row, __m512i left, __m512i right) { emit(row, widen_row(left), widen_row(right)); },
        scale);
  }
}

}  // namespace
}  // namespace avx512

}  // namespace moebius::cpu
