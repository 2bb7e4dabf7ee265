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

#include "experts/cpu/tiles/avx512_codes.h"
#include "experts/cpu/tiles/avx512_rows.h"

namespace moebius::cpu {

namespace avx512 {
namespace {

// A tile row, whose 16 columns have two k each.
struct FloatRow {
  __m512 even;
  __m512 odd;
};

[[gnu::always_inline]] inline FloatRow widen_row(__m512i bf16) {
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

// Whether f32 products are the shorter ones.  A single row gains where decoding to f32 takes fewer
// instructions than decoding to bf16 does.
template <TileCode kCode>
bool prefers_f32_products(const TileGemm& g) {
  constexpr bool kIsShorter = kCode == TileCode::kInt4 || kCode == TileCode::kMxfp4 ||
                              kCode == TileCode::kNvfp4 || kCode == TileCode::kI8AsBF16;
  return g.f32_products && (kIsShorter || g.rows > 1);
}

// See TileKernels::exponents.
ExponentRange exponents(const std::byte* panels, int64_t rows, int64_t steps) {
  // Twice the bits of a value have no sign; less one they are the largest number for zero.
  const __m512i one = _mm512_set1_epi16(1);
  __m512i least = _mm512_set1_epi16(-1);
  __m512i most = _mm512_setzero_si512();
  for (int64_t r = 0; r < rows; ++r) {
    const std::byte* line =
        panels + r / kPanelRows * steps * kStepBytes + r % kPanelRows * kTileRowBytes;
    for (int64_t step = 0; step < steps; ++step) {
      const __m512i bits = _mm512_loadu_si512(line + step * kStepBytes);
      const __m512i twice = _mm512_add_epi16(bits, bits);
      least = _mm512_min_epu16(least, _mm512_sub_epi16(twice, one));
      most = _mm512_max_epu16(most, twice);
    }
  }
  // The words of both halves of dwords.
  const __m512i low = _mm512_set1_epi32(0xffff);
  const uint32_t least_word = _mm512_reduce_min_epu32(
      _mm512_min_epu32(_mm512_and_si512(least, low), _mm512_srli_epi32(least, 16)));
  const uint32_t most_word = _mm512_reduce_max_epu32(
      _mm512_max_epu32(_mm512_and_si512(most, low), _mm512_srli_epi32(most, 16)));
  return {static_cast<int>((least_word + 1) >> 8), static_cast<int>(most_word >> 8)};
}

// Whether f32 products of kMxfp4 may keep their sums divided by the scale of the step that is
// added, so that no weight has to be multiplied by it.  A power of two changes no bit of a sum as
// long as the sum is finite and normal with and without it.  Sums are multiples of the
// product of 2^(least exponent - 134) and 2^(least scale - 128).  With a scale below 2 the code 0.5
// is subnormal, which bf16 products treat as zero.
bool can_scale_sums(const TileGemm& g) {
  const auto [least_scale, most_scale] = g.scale_exponents;
  return scaled_sums_are_finite(g) && least_scale >= 2 &&
         g.exponents.least >= 9 + most_scale - least_scale;
}

// Whether f32 products, which do not treat subnormals as zero, have the bits of bf16 products. They
// do where no sum is subnormal: a sum is a multiple of the lowest bit of an activation, which is
// 2^(exponent - 134), times that of a weight.  Why scales of groups are not counted: they are
// applied to sums, and alike.
template <TileCode kCode>
bool has_same_bits_in_f32(const TileGemm& g) {
  int least = 8;  // of the exponents with which that product is normal
  if constexpr (kCode == TileCode::kI8AsBF16) {
    least = 8 + 112;
  } else if constexpr (kCode == TileCode::kNvfp4) {
    least = 8 + 113;
  } else if constexpr (kCode == TileCode::kF8E4M3) {
    least = 8 + 17;
  } else if constexpr (kCode == TileCode::kMxfp4) {
    if (!can_scale_sums(g)) {
      return false;
    }
    least = 8 + 128 - g.scale_exponents.least;
  }
  return g.exponents.least >= std::max(least, 1);
}

// The codes of a tile row, in the lowest four bits of dwords; other codes are above.
struct NibbleRow {
  __m512i even;
  __m512i odd;
};
// Calls body(row, codes of the left tile, of the right one) for the rows of kBlocks blocks from
// kFirst on.  Loads that begin at a later byte take the place of half of the shifts.
template <size_t kFirst, size_t kBlocks, typename Body>
[[gnu::always_inline]] inline void for_each_nibble_row(const std::byte* unit, Body body) {
  const auto low = [](const std::byte* at) {
    return NibbleRow{_mm512_loadu_si512(at), _mm512_loadu_si512(at + 2)};
  };
  const auto high = [](const NibbleRow& row) {
    return NibbleRow{_mm512_srli_epi32(row.even, 4), _mm512_srli_epi32(row.odd, 4)};
  };
  unroll<2 * kBlocks>([&](size_t i) __attribute__((always_inline)) {
    const size_t half = 2 * kFirst + i;
    const std::byte* at = unit + half / 2 * 64 + half % 2;
    const NibbleRow left = low(at);
    const NibbleRow right = low(at + 256);
    body(static_cast<int>(2 * half), left, right);
    body(static_cast<int>(2 * half + 1), high(left), high(right));
  });
}

[[gnu::always_inline]] inline FloatRow look_up(const NibbleRow& codes, __m512 values) {
  return {_mm512_permutexvar_ps(codes.even, values), _mm512_permutexvar_ps(codes.odd, values)};
}

// Emits the values of the codes of those rows.
template <size_t kFirst, size_t kBlocks, typename Emit>
[[gnu::always_inline]] inline void look_up_rows(const std::byte* unit, __m512 values, Emit emit) {
  const auto body = [&](int row, const NibbleRow& left, const NibbleRow& right)
      __attribute__((always_inline)) {
    emit(row, look_up(left, values), look_up(right, values));
  };
  for_each_nibble_row<kFirst, kBlocks>(unit, body);
}

template <typename Emit>
[[gnu::always_inline]] inline void decode_int4_to_floats(const std::byte* unit, Emit emit) {
  look_up_rows<0, 4>(unit, _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7),
                     emit);
}
template <typename Emit>
[[gnu::always_inline]] inline void decode_int4_to_floats(const std::byte* unit,
                                                         const uint8_t* zero_points,
                                                         Emit emit) {
  const __m512 codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512 zeros_left = _mm512_cvtepi32_ps(bytes_to_dwords(zero_points));
  const __m512 zeros_right = _mm512_cvtepi32_ps(bytes_to_dwords(zero_points + 16));
  const auto less = [](const FloatRow& row, __m512 zeros) {
    return FloatRow{_mm512_sub_ps(row.even, zeros), _mm512_sub_ps(row.odd, zeros)};
  };
  const auto body = [&](int row, const FloatRow& left, const FloatRow& right)
      __attribute__((always_inline)) {
    emit(row, less(left, zeros_left), less(right, zeros_right));
  };
  look_up_rows<0, 4>(unit, codes, body);
}

// As decode_fp8.
template <typename Emit>
[[gnu::always_inline]] inline void decode_fp8_to_floats(const std::byte* unit,
                                                        uint16_t others,
                                                        Emit emit) {
  const __m512i kept = _mm512_set1_epi16(static_cast<short>(0x87f0));
  const __m512i exponent = _mm512_set1_epi16(0x3800);
  unroll<kTileRows / 2>([&](size_t i) __attribute__((always_inline)) {
    const auto pair = static_cast<int>(i);
    const __m512i left = _mm512_loadu_si512(unit + pair * 64);
    const __m512i right = _mm512_loadu_si512(unit + (8 + pair) * 64);
    // The even row of both tiles, then the odd row.
    __m512i rows[4] = {e4m3_even_rows(left), e4m3_even_rows(right), _mm512_srai_epi16(left, 4),
                       _mm512_srai_epi16(right, 4)};
    if ((others >> pair & 0x101) == 0) [[likely]] {
      for (__m512i& row : rows) {
        row = _mm512_ternarylogic_epi64(row, kept, exponent, 0xea);  // (row & kept) | exponent
      }
    } else {
      for (__m512i& row : rows) {
        row = e4m3_words(_mm512_and_si512(row, kept));
      }
    }
    emit(2 * pair, widen_row(rows[0]), widen_row(rows[1]));
    emit(2 * pair + 1, widen_row(rows[2]), widen_row(rows[3]));
  });
}

// As decode_int8, but without rounding to bf16.
template <typename Emit>
[[gnu::always_inline]] inline void decode_int8_to_floats(const std::byte* unit, Emit emit) {
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
  unroll<kTileRows>([&](size_t i) __attribute__((always_inline)) {
    const auto row = static_cast<int>(i);
    const __m512i left = _mm512_loadu_si512(unit + row / 2 * 64);
    const __m512i right = _mm512_loadu_si512(unit + (8 + row / 2) * 64);
    const int at = row % 2 * 8;
    emit(row, FloatRow{values(left, at), values(left, at + 1)},
         FloatRow{values(right, at), values(right, at + 1)});
  });
}

inline __m512 e2m1_values() {
  return _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6);
}

template <typename Emit, typename Scale>
[[gnu::always_inline]] inline void decode_nvfp4_to_floats(const std::byte* unit,
                                                          const std::byte* scales,
                                                          Emit emit,
                                                          Scale scale) {
  const __m512 values = _mm512_mul_ps(e2m1_values(), _mm512_set1_ps(0x1p-112f));
  unroll<2>([&](auto half) __attribute__((always_inline)) {
    look_up_rows<2 * half, 2>(unit, values, emit);
    const std::byte* of_half = scales + half * kBlockColumns;
    scale(e4m3_scales(of_half), e4m3_scales(of_half + 16));
  });
}

// Decodes unit `step` of a coded block as decode_unit does, but to f32; kMxfp4 without its scales.
template <TileCode kCode, bool kHasZeroPoints, typename Emit, typename Scale>
[[gnu::always_inline]] inline void decode_unit_to_floats(
    const TileGemm& g, int64_t group, int64_t step, Emit emit, Scale scale) {
  const std::byte* unit = g.units + step * unit_bytes(kCode);
  const std::byte* scales = g.step_scales + step * step_scale_bytes(kCode);
  if constexpr (kCode == TileCode::kInt4) {
    if constexpr (kHasZeroPoints) {
      decode_int4_to_floats(unit, zero_points_of(g, group), emit);
    } else {
      decode_int4_to_floats(unit, emit);
    }
  } else if constexpr (kCode == TileCode::kMxfp4) {
    look_up_rows<0, 4>(unit, e2m1_values(), emit);
  } else if constexpr (kCode == TileCode::kNvfp4) {
    decode_nvfp4_to_floats(unit, scales, emit, scale);
  } else if constexpr (kCode == TileCode::kI8AsBF16) {
    decode_int8_to_floats(unit, emit);
  } else if constexpr (kCode == TileCode::kBF16) {
    unroll<kTileRows>([&](size_t i) __attribute__((always_inline)) {
      const std::byte* row = unit + i * kTileRowBytes;
      emit(static_cast<int>(i), widen_row(_mm512_loadu_si512(row)),
           widen_row(_mm512_loadu_si512(row + kTileBytes)));
    });
  } else {
    static_assert(kCode == TileCode::kF8E4M3);
    decode_fp8_to_floats(unit, g.others[step], emit);
  }
}

// The powers of two that sums of kMxfp4 are multiplied with from one step to the next.
class StepScales {
 public:
  // The factors are those of the left and of the right tile.
  struct Factors {
    __m512 left;
    __m512 right;
  };
  // Return the factors of sums that were divided by the scales so far, after which they are
  // divided by those of a step, or by 1.
  [[gnu::always_inline]] Factors to_step(const std::byte* scales) {
    return to(bytes_to_dwords(scales), bytes_to_dwords(scales + 16));
  }
  [[gnu::always_inline]] Factors to_one() {
    return to(_mm512_set1_epi32(kOne), _mm512_set1_epi32(kOne));
  }

 private:
  static constexpr int kOne = 127;

  [[gnu::always_inline]] Factors to(__m512i left, __m512i right) {
    const Factors factors = {power(left_, left), power(right_, right)};
    left_ = left;
    right_ = right;
    return factors;
  }
  [[gnu::always_inline]] static __m512 power(__m512i before, __m512i after) {
    const __m512i exponent =
        _mm512_add_epi32(_mm512_sub_epi32(before, after), _mm512_set1_epi32(kOne));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
  }

  __m512i left_ = _mm512_set1_epi32(kOne);
  __m512i right_ = _mm512_set1_epi32(kOne);
};

}  // namespace
}  // namespace avx512

}  // namespace moebius::cpu
