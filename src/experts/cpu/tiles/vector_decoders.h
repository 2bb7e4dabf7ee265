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
  void start_part(const TileGemm&, int64_t) {}
  void start_step(const TileGemm&, int64_t) {}
};

struct BF16Decoder : DecoderWithoutState {
  static constexpr TileCode kCode = TileCode::kBF16;
  static constexpr int kDepth = 2;

  struct Values {
    Words pair;
    Floats at(int i) const { return as_floats(i == 0 ? pair << 16 : pair & 0xffff0000); }
  };
  Values load(const std::byte* words, int64_t, int) const { return {cpu::load<Words>(words)}; }
};

struct F16Decoder : DecoderWithoutState {
  static constexpr TileCode kCode = TileCode::kF16;
  static constexpr int kDepth = 2;

  struct Values {
    Words pair;
    Floats at(int i) const { return f16_to_floats(i == 0 ? pair & 0xffff : pair >> 16); }
  };
  Values load(const std::byte* words, int64_t, int) const { return {cpu::load<Words>(words)}; }
};

// Gives the int16 pairs of even k and of odd k.
struct Int8Decoder : DecoderWithoutState {
  static constexpr TileCode kCode = TileCode::kI8;
  static constexpr int kDepth = 2;

  struct Values {
    Words codes;
    Ints at(int i) const {
      return i == 0 ? (Ints)((Shorts)(codes << 8 & 0xff00ff00) >> 8) : (Ints)((Shorts)codes >> 8);
    }
  };
  Values load(const std::byte* words, int64_t, int) const { return {cpu::load<Words>(words)}; }
};

// Moves the bits of a code to where f32 has them.  Where some codes of a step have none there,
// since they are zero, subnormal or NaN, the values of the step are computed.
struct E4M3Decoder {
  static constexpr TileCode kCode = TileCode::kF8E4M3;
  static constexpr int kDepth = 4;

  void start_part(const TileGemm&, int64_t) {}
  void start_step(const TileGemm& g, int64_t step) { others = g.others[step]; }

  struct Values {
    Words codes;
    bool has_others;

    Floats at(int i) const {
      // The codes of rows 0 and 1 of four have their bits in another order, see kF8E4M3.
      const bool is_odd = i > 1;
      const uint32_t shift = (i % 2 == 0 ? 0u : 16u) + (is_odd ? 8u : 0u);
      if (has_others) [[unlikely]] {
        const Words byte = codes >> shift;
        const Words magnitude = is_odd ? byte & 0x7f : (byte & 7) << 4 | (byte >> 3 & 0xf);
        return e4m3_to_floats(magnitude, (byte & 0x80) << 24);
      }
      const Words top = codes << (24 - shift);
      const Words bits =
          is_odd ? (Words)((Ints)top >> 4) & 0x87f00000
                 : (top & 0x87000000) | ((i % 2 == 0 ? codes << 17 : codes << 1) & 0xf00000);
      return as_floats(bits + (uint32_t{120} << 23));
    }
  };
  Values load(const std::byte* words, int64_t line, int v) const {
    return {cpu::load<Words>(words), (others >> (v / kChunks * 8 + line) & 1) != 0};
  }

  int others = 0;
};

// A nibble at bit b of a word becomes a number without any shift: with the exponent of 2^(23 - b)
// above it, it is 2^(23 - b) + code, from which that power and the zero point are subtracted.  Bits
// 0 to 19 have five codes, and their exponents are all made from one, kExponents, by clearing bits.
template <bool kHasZeroPoints>
struct Int4Decoder {
  static constexpr TileCode kCode = TileCode::kInt4;
  static constexpr int kDepth = 8;
  static constexpr uint32_t kExponents = uint32_t{0b10011110} << 23;
  static constexpr int kPlaces = 5;

  static constexpr uint32_t exponent(int place) {
    return static_cast<uint32_t>(127 + 23 - 4 * place) << 23;
  }

  struct Values {
    Words low;   // codes 0 to 4
    Words high;  // codes 5 to 7, in places 2 to 4
    const Floats* bases;

    Floats at(int i) const {
      const int code = i / 2 + i % 2 * 4;
      const int place = code < kPlaces ? code : code - 3;
      const Words mask = Words{} + (uint32_t{0xf} << (4 * place) | exponent(place));
      const Floats value = as_floats((code < kPlaces ? low : high) & mask);
      if constexpr (kHasZeroPoints) {
        return value - bases[place];
      } else {
        // Without zero points the base is a constant that columns share.
        return value - (as_floats(Words{} + exponent(place)) + 8.0f);
      }
    }
  };

  void start_part(const TileGemm& g, int64_t group) {
    for (int v = 0; kHasZeroPoints && v < kVectors; ++v) {
      const Floats zero_points =
          to_floats(bytes_to_words(g.zero_points + group * kBlockColumns + v * kLanes));
      for (int place = 0; place < kPlaces; ++place) {
        bases[v][place] = as_floats(Words{} + exponent(place)) + zero_points;
      }
    }
  }
  void start_step(const TileGemm&, int64_t) {}
  Values load(const std::byte* words, int64_t, int v) const {
    const auto codes = cpu::load<Words>(words);
    // Why opaque: or the compiler masks codes and exponents apart.
    return {opaque((codes & 0xfffff) | kExponents), opaque(codes >> 12 | kExponents),
            kHasZeroPoints ? bases[v] : nullptr};
  }

  Floats bases[kHasZeroPoints ? static_cast<size_t>(kVectors) : 1][static_cast<size_t>(kPlaces)];
};

// e2m1 codes times the scales of their step, or of their half of it.
template <TileCode kE2M1>
struct E2M1Decoder {
  static constexpr TileCode kCode = kE2M1;
  static constexpr int kDepth = 8;
  static constexpr int kHalves = kCode == TileCode::kNvfp4 ? 2 : 1;

  struct Values {
    Words codes;
    Floats scales;

    Floats at(int i) const {
      return e2m1_to_floats(codes >> static_cast<uint32_t>(4 * (i / 2 + i % 2 * 4))) * scales;
    }
  };

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
  Values load(const std::byte* words, int64_t line, int v) const {
    return {cpu::load<Words>(words), scales[line * kHalves / 4][v]};
  }

  Floats scales[static_cast<size_t>(kHalves)][static_cast<size_t>(kVectors)];
};
}  // namespace

}  // namespace moebius::cpu
