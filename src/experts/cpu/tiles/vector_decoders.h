// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Decoders of packed weights in registers: a word per column becomes the values of kDepth
// consecutive k, which are those that vector_codes.h decodes, bit by bit.
#pragma once

#include "experts/cpu/tiles/vector_types.h"

namespace moebius::cpu {

namespace {

// A decoder is told where it is by start_part() and start_step().  load(words, line, v) then reads
// line `line` of a tile, of the columns of vector v; at(i) of what it returns has the values of k =
// line * kDepth + i.
struct DecoderWithoutState {
  using Ready = const std::byte*;
  void prepare(const std::byte* words, int64_t, int, Ready& ready) const { ready = words; }
  void start_part(const TileGemm&, int64_t) {}
  void start_step(const TileGemm&, int64_t) {}
};

struct BF16Decoder : DecoderWithoutState {
  static constexpr TileCode kCode = TileCode::kBF16;
  static constexpr int kDepth = 2;

  Floats value(Ready words, int i, int64_t, int) const {
    const auto pair = load<Words>(words);
    return as_floats(i == 0 ? pair << 16 : pair & 0xffff0000);
  }
};

struct F16Decoder : DecoderWithoutState {
  static constexpr TileCode kCode = TileCode::kF16;
  static constexpr int kDepth = 2;

  Floats value(Ready words, int i, int64_t, int) const {
    const auto pair = load<Words>(words);
    return f16_to_floats(i == 0 ? pair & 0xffff : pair >> 16);
  }
};

// Gives the int16 pairs of even k and of odd k.
struct Int8Decoder : DecoderWithoutState {
  static constexpr TileCode kCode = TileCode::kI8;
  static constexpr int kDepth = 2;

  Ints value(Ready words, int i, int64_t, int) const {
    const auto codes = load<Words>(words);
    return i == 0 ? (Ints)((Shorts)(codes << 8 & 0xff00ff00) >> 8) : (Ints)((Shorts)codes >> 8);
  }
};

// Moves the bits of two codes at a time to where bf16 has them, which is 2^-120 times their value,
// also where that is zero or subnormal.
struct E4M3Decoder {
  static constexpr TileCode kCode = TileCode::kF8E4M3;
  static constexpr int kDepth = 4;

  struct Ready {
    Words pairs[2];
  };
  void start_part(const TileGemm&, int64_t) {}
  void start_step(const TileGemm& g, int64_t step) { others = g.others[step]; }
  void prepare(const std::byte* words, int64_t line, int v, Ready& ready) const {
    // The codes of rows 0 and 1 of four have their bits in another order, see kF8E4M3.
    const auto codes = load<Shorts>(words);
    ready.pairs[0] = ((Words)(codes << 8) & 0x87008700) | ((Words)(codes << 1) & 0x00f000f0);
    ready.pairs[1] = (Words)(codes >> 4) & 0x87f087f0;
    if ((others >> (v / kChunks * 8 + line) & 1) != 0) [[unlikely]] {
      for (Words& pair : ready.pairs) {
        pair |= (Words)((Shorts)(pair & 0x07f007f0) == 0x07f0) & 0x7fc07fc0;  // NaN
      }
    }
  }
  Floats value(const Ready& ready, int i, int64_t, int) const {
    const Words pair = ready.pairs[i / 2];
    return as_floats(i % 2 == 0 ? pair << 16 : pair & 0xffff0000) * 0x1p120f;
  }

  int others = 0;
};

// The exponents of 2^23 and 2^15, each of which is left when other bits are cleared.
constexpr uint32_t kByteExponents = uint32_t{0b10011110} << 23;
// Codes of kBits bits in a word become numbers without any shift: with the exponent of
// 2^(kPower - b) above it, a code at bit b is that power and a multiple of the code, from which the
// power and the code of zero are subtracted.
template <int kBits, int kPlaces, int kBases, int kPower>
struct CodesInPlace {
  // `zero` is the number that the code of zero becomes, beyond the power.
  void start(int base, Floats zero) {
    for (int place = 0; place < kPlaces; ++place) {
      const Words exponent = Words{} + (static_cast<uint32_t>(127 + kPower - kBits * place) << 23);
      masks[place] = exponent | ((uint32_t{1} << kBits) - 1) << (kBits * place);
      bases[base][place] = as_floats(exponent) + zero;
    }
  }
  // The number at a place of a half of a word whose exponents are set.
  Floats number(Words half, int place, int base) const {
    return as_floats(half & masks[place]) - bases[base][place];
  }

  Words masks[static_cast<size_t>(kPlaces)];
  Floats bases[static_cast<size_t>(kBases)][static_cast<size_t>(kPlaces)];
};

// Integers of kBits bits, which may have zero points for each column.
template <int kBits, int kPlaces, bool kHasZeroPoints>
struct IntegersInPlace : CodesInPlace<kBits, kPlaces, kHasZeroPoints ? kVectors : 1, 23> {
  void start_part(const TileGemm& g, int64_t group) {
    if constexpr (kHasZeroPoints) {
      for (int v = 0; v < kVectors; ++v) {
        this->start(v,
                    to_floats(bytes_to_words(g.zero_points + group * kBlockColumns + v * kLanes)));
      }
    } else {
      this->start(0, Floats{} + static_cast<float>(1 << (kBits - 1)));
    }
  }
  void start_step(const TileGemm&, int64_t) {}
};

template <bool kHasZeroPoints>
struct Int8AsBF16Decoder : IntegersInPlace<8, 2, kHasZeroPoints> {
  static constexpr TileCode kCode = TileCode::kI8AsBF16;
  static constexpr int kDepth = 4;

  struct Ready {
    Words halves[2];
  };
  void prepare(const std::byte* words, int64_t, int, Ready& ready) const {
    const Words codes = columns_of_pairs(load<Words>(words));
    ready.halves[0] = with_upper_half(codes, kByteExponents);
    ready.halves[1] = opaque(codes >> 16 | kByteExponents);
  }
  Floats value(const Ready& ready, int i, int64_t, int v) const {
    return this->number(ready.halves[i / 2], i % 2, kHasZeroPoints ? v : 0);
  }
};

// A half of a word has four codes, whose exponents are all made from one, that of bytes, by
// clearing bits.
template <bool kHasZeroPoints>
struct Int4Decoder : IntegersInPlace<4, 4, kHasZeroPoints> {
  static constexpr TileCode kCode = TileCode::kInt4;
  static constexpr int kDepth = 8;

  struct Ready {
    Words halves[2];
  };
  void prepare(const std::byte* words, int64_t, int, Ready& ready) const {
    const auto codes = load<Words>(words);
    ready.halves[0] = with_upper_half(codes, kByteExponents);
    ready.halves[1] = opaque(codes >> 16 | kByteExponents);
  }
  Floats value(const Ready& ready, int i, int64_t, int v) const {
    return this->number(ready.halves[i % 2], i / 2, kHasZeroPoints ? v : 0);
  }
};

// e2m1 codes times the scales of their step, or of their half of it.
template <TileCode kE2M1>
struct E2M1Scales {
  static constexpr TileCode kCode = kE2M1;
  static constexpr int kDepth = 8;
  static constexpr int kHalves = kCode == TileCode::kNvfp4 ? 2 : 1;

  void start_step(const TileGemm& g, int64_t step) {
    const std::byte* from = g.step_scales + step * step_scale_bytes(kCode);
    for (int half = 0; half < kHalves; ++half) {
      for (int v = 0; v < kVectors; ++v) {
        const Words codes = bytes_to_words(from + half * kBlockColumns + v * kLanes);
        scales[half][v] = kCode == TileCode::kMxfp4
                              ? e8m0_to_floats(codes)
                              : e4m3_to_floats(codes & 0x7f, (codes & 0x80) << 24);
      }
    }
  }
  const Floats& scale(int64_t line, int v) const { return scales[line * kHalves / 4][v]; }

  Floats scales[static_cast<size_t>(kHalves)][static_cast<size_t>(kVectors)];
};

#if defined(__AVX2__) && !defined(__AVX512F__)
// Looks up both bytes of a bf16 for all codes of a vector at once.
struct E2M1Codes {
  // Pairs of the codes of even and of odd nibbles in two bytes of a word.
  struct Ready {
    Words pairs[2][2];
  };
  void start_part(const TileGemm&, int64_t) {}
  void prepare(const std::byte* words, int64_t, int, Ready& ready) const {
    const __m256i lower =
        _mm256_setr_epi8(0, 0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40, 0, 0x00, -0x80, -0x40,
                         0x00, 0x40, -0x80, -0x40, 0, 0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40,
                         0, 0x00, -0x80, -0x40, 0x00, 0x40, -0x80, -0x40);
    const __m256i upper =
        _mm256_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, 0, -0x41, -0x41, -0x41, -0x40,
                         -0x40, -0x40, -0x40, 0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, 0, -0x41,
                         -0x41, -0x41, -0x40, -0x40, -0x40, -0x40);
    const Words codes = pairs_of_columns(load<Words>(words));
    const Words nibbles[2] = {codes & 0x0f0f0f0f, codes >> 4 & 0x0f0f0f0f};
    for (int odd = 0; odd < 2; ++odd) {
      const __m256i low = _mm256_shuffle_epi8(lower, (__m256i)nibbles[odd]);
      const __m256i high = _mm256_shuffle_epi8(upper, (__m256i)nibbles[odd]);
      ready.pairs[odd][0] = (Words)_mm256_unpacklo_epi8(low, high);
      ready.pairs[odd][1] = (Words)_mm256_unpackhi_epi8(low, high);
    }
  }
  Floats code(const Ready& ready, int i) const {
    const int nibble = i / 2 + i % 2 * 4;
    const Words pair = ready.pairs[nibble % 2][nibble / 4];
    return as_floats(nibble / 2 % 2 == 0 ? pair << 16 : pair & 0xffff0000);
  }
};
#else
struct E2M1Codes {
  using Ready = const std::byte*;

  void start_part(const TileGemm&, int64_t) {}
  void prepare(const std::byte* words, int64_t, int, Ready& ready) const { ready = words; }
  Floats code(Ready words, int i) const {
    const auto codes = load<Words>(words);
    return e2m1_to_floats(codes >> static_cast<uint32_t>(4 * (i / 2 + i % 2 * 4)));
  }
};
#endif

template <TileCode kE2M1>
struct E2M1Decoder : E2M1Scales<kE2M1>, E2M1Codes {
  Floats value(const Ready& ready, int i, int64_t line, int v) const {
    return code(ready, i) * this->scale(line, v);
  }
};

// Gives codes without their scales, with which sums are multiplied instead: those of a step are
// sums of the codes, to which the sums of the steps before are added divided by its scale.
// REQUIRES: can_scale_sums(g).
struct Mxfp4CodeDecoder : E2M1Codes {
  static constexpr TileCode kCode = TileCode::kMxfp4;
  static constexpr int kDepth = 8;

  void start_step(const TileGemm&, int64_t) {}
  Floats value(const Ready& ready, int i, int64_t, int) const { return code(ready, i); }
};

// The scales of the columns of vector v, and the factor from the sums of a step to those of the
// next one.
inline Words step_scales_of(const TileGemm& g, int64_t step, int v) {
  return bytes_to_words(g.step_scales + step * step_scale_bytes(TileCode::kMxfp4) + v * kLanes);
}
inline Floats scale_of_sums(const TileGemm& g, int64_t step, int v) {
  return as_floats(step_scales_of(g, step, v) << 23);
}
inline Floats factor_to_next(const TileGemm& g, int64_t step, int v) {
  return as_floats((step_scales_of(g, step, v) - step_scales_of(g, step + 1, v) + 127) << 23);
}

// Whether a power of two changes no bit of the sums of kMxfp4: they are finite and multiples of the
// least subnormal number, as they are and divided by any of their scales.  They are multiples of
// 2^(least exponent - 150) * 2^(least scale - 128).  Weights, too, are normal numbers.
inline bool can_scale_sums(const TileGemm& g) {
  const auto [least_scale, most_scale] = g.scale_exponents;
  return scaled_sums_are_finite(g) && least_scale >= 2 && most_scale <= 252 &&
         g.exponents.least >= 2 + most_scale - least_scale &&
         g.exponents.least >= 129 - least_scale;
}

// See TileKernels::exponents; of f32 panels.
inline ExponentRange float_exponents(const std::byte* panels, int64_t rows, int64_t steps) {
  // Twice the bits of a value have no sign; less one they are the largest number for zero.
  Words least = ~Words{};
  Words most{};
  for (int64_t r = 0; r < rows; ++r) {
    const std::byte* line =
        panels + r / kPanelRows * 2 * steps * kStepBytes + r % kPanelRows * kTileRowBytes;
    for (int64_t i = 0; i < 2 * steps; ++i, line += kStepBytes) {
      for (int64_t at = 0; at < kTileRowBytes; at += kLanes * 4) {
        const Words twice = load<Words>(line + at) << 1;
        least = twice - 1 < least ? twice - 1 : least;
        most = twice > most ? twice : most;
      }
    }
  }
  uint32_t least_word = least[0];
  uint32_t most_word = most[0];
  for (int i = 1; i < kLanes; ++i) {
    least_word = least[i] < least_word ? least[i] : least_word;
    most_word = most[i] > most_word ? most[i] : most_word;
  }
  return {static_cast<int>((uint64_t{least_word} + 1) >> 24), static_cast<int>(most_word >> 24)};
}

}  // namespace

}  // namespace moebius::cpu
