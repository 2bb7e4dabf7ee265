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
// The same of 2^22 and 2^14, where bytes stand for half their number.
constexpr uint32_t kHalfByteExponents = uint32_t{0b10011101} << 23;

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

  void start_part(const TileGemm&, int64_t) {}
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
// Looks up twice the value and 16 more as a byte, for all codes of a vector at once.
template <TileCode kE2M1>
struct E2M1Decoder : E2M1Scales<kE2M1> {
  using Base = E2M1Scales<kE2M1>;

  struct Ready {
    Words halves[2][2];  // of even and of odd nibbles
  };
  void start_part(const TileGemm&, int64_t) { bytes.start(0, Floats{} + 8.0f); }
  void prepare(const std::byte* words, int64_t, int, Ready& ready) const {
    const auto codes = load<Words>(words);
    const __m256i values =
        _mm256_setr_epi8(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4, 16, 17, 18,
                         19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4);
    const Words nibbles[2] = {codes & 0x0f0f0f0f, codes >> 4 & 0x0f0f0f0f};
    for (int odd = 0; odd < 2; ++odd) {
      const auto found = (Words)_mm256_shuffle_epi8(values, (__m256i)nibbles[odd]);
      ready.halves[odd][0] = with_upper_half(found, kHalfByteExponents);
      ready.halves[odd][1] = opaque(found >> 16 | kHalfByteExponents);
    }
  }
  Floats value(const Ready& ready, int i, int64_t line, int v) const {
    const int nibble = i / 2 + i % 2 * 4;
    const Words half = ready.halves[nibble % 2][nibble / 4];
    return bytes.number(half, nibble / 2 % 2, 0) * Base::scale(line, v);
  }

  CodesInPlace<8, 2, 1, 22> bytes;
};
#else
template <TileCode kE2M1>
struct E2M1Decoder : E2M1Scales<kE2M1> {
  using Base = E2M1Scales<kE2M1>;
  using Ready = const std::byte*;

  void prepare(const std::byte* words, int64_t, int, Ready& ready) const { ready = words; }
  Floats value(Ready words, int i, int64_t line, int v) const {
    const auto codes = load<Words>(words);
    return e2m1_to_floats(codes >> static_cast<uint32_t>(4 * (i / 2 + i % 2 * 4))) *
           Base::scale(line, v);
  }
};
#endif

}  // namespace

}  // namespace moebius::cpu
