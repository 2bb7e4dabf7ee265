// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The row kernels over an instruction set's vectors of f32 and i32 lanes.  Isa is a struct of a few
// primitives (cpu_avx2.cc shows them all); it lives in a namespace of its own file, so every
// function here is compiled once per instruction set under a name of its own.  Nothing from std::
// is called, for the same reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "quant/row_kernels.h"

namespace moebius::quant {

template <class Isa>
struct VectorKernels {
  using F = typename Isa::F;  // kLanes floats
  using I = typename Isa::I;  // kLanes 32-bit integers
  static constexpr int kLanes = Isa::kLanes;
  // Elements handled at once; the last of a group are padded with zeros up to this.
  static constexpr int kBlock = 16;
  static_assert(kBlock % kLanes == 0);

  // ---- Elements in memory.

  template <DType kType>
  static constexpr int64_t kSize = kType == DType::kF32 ? 4 : 2;

  template <DType kType>
  static F load(const std::byte* x) {
    if constexpr (kType == DType::kF32) {
      return Isa::load_f32(x);
    } else if constexpr (kType == DType::kF16) {
      return Isa::load_f16(x);
    } else {
      return Isa::as_float(Isa::template shift_left<16>(Isa::load_u16(x)));
    }
  }

  template <DType kType>
  static void store(F value, std::byte* out) {
    if constexpr (kType == DType::kF32) {
      Isa::store_f32(value, out);
    } else if constexpr (kType == DType::kF16) {
      Isa::store_f16(value, out);
    } else {
      const I bits = Isa::as_int(value);
      const I high = Isa::template shift_right<16>(bits);
      const I odd = Isa::bit_and(high, Isa::set(1));
      const I nearest =
          Isa::template shift_right<16>(Isa::add(bits, Isa::add(odd, Isa::set(0x7fff))));
      const I magnitude = Isa::bit_and(bits, Isa::set(0x7fffffff));
      const I quiet_nan = Isa::bit_or(high, Isa::set(0x40));
      Isa::store_u16(Isa::if_greater(magnitude, Isa::set(0x7f800000), quiet_nan, nearest), out);
    }
  }

  // ---- Packed codes: kBlock codes, one per byte <-> kBlock * kBits / 8 bytes.

  template <class Word>
  static uint64_t load_word(const uint8_t* p) {
    Word word;
    std::memcpy(&word, p, sizeof(word));
    return word;
  }

  template <int kBits>
  static void pack(const uint8_t* codes, uint8_t* out) {
    for (int i = 0; i < kBlock; i += 8) {
      uint64_t w = load_word<uint64_t>(codes + i);
      if constexpr (kBits == 4) {
        w = (w | (w >> 4)) & 0x00ff00ff00ff00ffu;
        w = (w | (w >> 8)) & 0x0000ffff0000ffffu;
        w |= w >> 16;
      } else {
        w = (w & 0x003f003f003f003fu) | ((w >> 2) & 0x0fc00fc00fc00fc0u);
        w = (w & 0x00000fff00000fffu) | ((w >> 4) & 0x00fff00000fff000u);
        w = (w & 0x0000000000ffffffu) | ((w >> 8) & 0x0000ffffff000000u);
      }
      std::memcpy(out + i * kBits / 8, &w, kBits);
    }
  }

  // Into words of eight bytes, which stay in registers.
  template <int kBits>
  static void unpack(const uint8_t* in, uint64_t* words) {
    for (int64_t i = 0; i < kBlock / 8; ++i) {
      const uint8_t* bytes = in + i * kBits;
      uint64_t w = load_word<uint32_t>(bytes);
      if constexpr (kBits == 4) {
        w = (w | (w << 16)) & 0x0000ffff0000ffffu;
        w = (w | (w << 8)) & 0x00ff00ff00ff00ffu;
        w = (w | (w << 4)) & 0x0f0f0f0f0f0f0f0fu;
      } else {
        w |= load_word<uint16_t>(bytes + 4) << 32;
        w = (w & 0x0000000000ffffffu) | ((w << 8) & 0x00ffffff00000000u);
        w = (w & 0x00000fff00000fffu) | ((w << 4) & 0x0fff00000fff0000u);
        w = (w & 0x003f003f003f003fu) | ((w << 2) & 0x3f003f003f003f00u);
      }
      words[i] = w;
    }
  }

  // ---- Small floats of E exponent and M mantissa bits.

  // REQUIRES: |value| is at most the largest of the format, or kNanBeyond.
  template <int E, int M, bool kNanBeyond = false>
  static I encode_minifloat(F value) {
    constexpr int kBias = (1 << (E - 1)) - 1;
    constexpr int kShift = 23 - M;
    const I bits = Isa::as_int(value);
    const I magnitude = Isa::bit_and(bits, Isa::set(0x7fffffff));
    const I sign = Isa::template shift_right<31 - E - M>(Isa::bit_andnot(magnitude, bits));
    // Normal: round the mantissa in place, a carry moves into the exponent.
    const I odd = Isa::bit_and(Isa::template shift_right<kShift>(magnitude), Isa::set(1));
    const I rounded = Isa::add(magnitude, Isa::add(odd, Isa::set((1 << (kShift - 1)) - 1)));
    I normal = Isa::sub(Isa::template shift_right<kShift>(rounded), Isa::set((127 - kBias) << M));
    if constexpr (kNanBeyond) {
      constexpr int kNan = (1 << (E + M)) - 1;
      normal = Isa::if_greater(normal, Isa::set(kNan - 1), Isa::set(kNan), normal);
    }
    // Subnormal: adding a float whose last bit is the format's step rounds to that step.
    const I magic = Isa::set((127 + 24 - kBias - M) << 23);
    const F sum = Isa::add(Isa::as_float(magnitude), Isa::as_float(magic));
    const I subnormal = Isa::sub(Isa::as_int(sum), magic);
    const I smallest_normal = Isa::set((128 - kBias) << 23);
    return Isa::bit_or(Isa::if_greater(smallest_normal, magnitude, subnormal, normal), sign);
  }

  template <int E, int M, bool kHasNan = false>
  static F decode_minifloat(I codes) {
    constexpr int kBias = (1 << (E - 1)) - 1;
    const I magnitude = Isa::bit_and(codes, Isa::set((1 << (E + M)) - 1));
    const I sign =
        Isa::template shift_left<31 - E - M>(Isa::bit_and(codes, Isa::set(1 << (E + M))));
    I bits = Isa::add(Isa::template shift_left<23 - M>(magnitude), Isa::set((127 - kBias) << 23));
    if constexpr (kHasNan) {
      constexpr int kNan = (1 << (E + M)) - 1;
      bits = Isa::if_greater(magnitude, Isa::set(kNan - 1), Isa::set(0x7fc00000), bits);
    }
    const F step = Isa::as_float(Isa::set((128 - kBias - M) << 23));
    const F subnormal = Isa::mul(Isa::to_float(magnitude), step);
    bits = Isa::if_greater(Isa::set(1 << M), magnitude, Isa::as_int(subnormal), bits);
    return Isa::as_float(Isa::bit_or(bits, sign));
  }

  // ---- One vector.

  static F clamp(F value, float low, float high) {
    return Isa::max(Isa::min(value, Isa::set(high)), Isa::set(low));  // NaN: high
  }

  // To the nearest, half away from zero; |value| < 2^22.
  // Why not 0.5: a value just below a half would reach the next integer when it is added.
  static I round_half_away(F value) {
    const I below_half = Isa::set(0x3effffff);
    const I sign = Isa::bit_and(Isa::as_int(value), Isa::set(-0x7fffffff - 1));
    return Isa::truncate_to_int(Isa::add(value, Isa::as_float(Isa::bit_or(below_half, sign))));
  }

  template <Encode kHow>
  static I encode_lanes(F x, F f, F zero_point) {
    constexpr bool kDivide = kHow == Encode::kE4M3Divide || kHow == Encode::kI8NearestDivide ||
                             kHow == Encode::kI8TruncateDivide || kHow == Encode::kU4Divide;
    const F v = kDivide ? Isa::div(x, f) : Isa::mul(x, f);
    if constexpr (kHow == Encode::kE4M3Multiply || kHow == Encode::kE4M3Divide) {
      return encode_minifloat<4, 3>(clamp(v, -kE4M3Max, kE4M3Max));
    } else if constexpr (kHow == Encode::kE4M3Overflow) {
      return encode_minifloat<4, 3, /*kNanBeyond=*/true>(v);
    } else if constexpr (kHow == Encode::kE2M1Multiply) {
      return encode_minifloat<2, 1>(clamp(v, -kE2M1Max, kE2M1Max));
    } else if constexpr (kHow == Encode::kE3M2Multiply) {
      return encode_minifloat<3, 2>(clamp(v, -kE3M2Max, kE3M2Max));
    } else if constexpr (kHow == Encode::kE2M3Multiply) {
      return encode_minifloat<2, 3>(clamp(v, -kE2M3Max, kE2M3Max));
    } else if constexpr (kHow == Encode::kU4Divide) {
      const F nearest = Isa::round_even(Isa::zero_if_nan(v));
      return Isa::to_int(clamp(Isa::add(nearest, zero_point), 0.0f, 15.0f));
    } else {
      const F bounded = clamp(Isa::zero_if_nan(v), -128.0f, 127.0f);
      if constexpr (kHow == Encode::kI8NearestDivide) {
        return Isa::to_int(bounded);
      } else if constexpr (kHow == Encode::kI8TruncateDivide) {
        return Isa::truncate_to_int(bounded);
      } else {
        return round_half_away(bounded);
      }
    }
  }

  template <Code kCode>
  static F decode_lanes(I codes) {
    if constexpr (kCode == Code::kI8 || kCode == Code::kU4) {
      return Isa::to_float(codes);
    } else if constexpr (kCode == Code::kE4M3) {
      return decode_minifloat<4, 3, /*kHasNan=*/true>(codes);
    } else if constexpr (kCode == Code::kE3M2) {
      return decode_minifloat<3, 2>(codes);
    } else if constexpr (kCode == Code::kE2M3) {
      return decode_minifloat<2, 3>(codes);
    } else {
      const I sign = Isa::template shift_left<28>(Isa::bit_and(codes, Isa::set(8)));
      return Isa::as_float(Isa::bit_or(Isa::as_int(Isa::e2m1_magnitude(codes)), sign));
    }
  }

  // ---- One block.

  template <DType kType, Encode kHow>
  static void encode_block(const std::byte* x, F f, F zero_point, uint8_t* out) {
    constexpr int kBits = code_bits(code_of(kHow));
    uint8_t codes[kBlock];
    uint8_t* bytes = kBits == 8 ? out : codes;
    for (int i = 0; i < kBlock; i += kLanes) {
      Isa::store_u8(encode_lanes<kHow>(load<kType>(x + i * kSize<kType>), f, zero_point),
                    bytes + i);
    }
    if constexpr (kBits < 8) {
      pack<kBits>(codes, out);
    }
  }

  template <Code kCode, DType kType>
  static void decode_block(const uint8_t* in, F scale, F zero_point, std::byte* out) {
    constexpr int kBits = code_bits(kCode);
    uint64_t words[kBlock / 8];
    if constexpr (kBits < 8) {
      unpack<kBits>(in, words);
    }
    for (int i = 0; i < kBlock; i += kLanes) {
      I codes;
      if constexpr (kBits < 8) {
        codes = Isa::widen_u8(words + i / 8);
      } else if constexpr (kCode == Code::kI8) {
        codes = Isa::load_i8(in + i);
      } else {
        codes = Isa::load_u8(in + i);
      }
      F value = decode_lanes<kCode>(codes);
      if constexpr (kCode == Code::kI8 || kCode == Code::kU4) {
        value = Isa::sub(value, zero_point);
      }
      store<kType>(Isa::mul(value, scale), out + i * kSize<kType>);
    }
  }

  // ---- Rows.

  template <DType kType>
  static Range range_of_group(const std::byte* x, int64_t n, Range range) {
    F min = Isa::set(range.min);
    F max = Isa::set(range.max);
    const auto widen_by = [&](const std::byte* block) {
      for (int i = 0; i < kBlock; i += kLanes) {
        const F v = load<kType>(block + i * kSize<kType>);
        min = Isa::min(v, min);  // the second operand where v is NaN or an equal zero
        max = Isa::max(v, max);
      }
    };
    int64_t i = 0;
    for (; i + kBlock <= n; i += kBlock) {
      widen_by(x + i * kSize<kType>);
    }
    if (i < n) {
      std::byte tail[kBlock * kSize<kType>] = {};  // zeros belong to every range
      std::memcpy(tail, x + i * kSize<kType>, static_cast<size_t>((n - i) * kSize<kType>));
      widen_by(tail);
    }
    return {Isa::reduce_min(min), Isa::reduce_max(max)};
  }

  template <DType kType>
  static void range_row(const std::byte* x, int64_t n, int64_t group, Range* ranges) {
    for (int64_t begin = 0, j = 0; begin < n; begin += group, ++j) {
      const int64_t count = n - begin < group ? n - begin : group;
      ranges[j] = range_of_group<kType>(x + begin * kSize<kType>, count, ranges[j]);
    }
  }

  template <DType kType, Encode kHow>
  static void encode_row(const std::byte* x,
                         int64_t n,
                         int64_t group,
                         const float* f,
                         const float* zero_points,
                         uint8_t* out) {
    constexpr int kBits = code_bits(code_of(kHow));
    for (int64_t begin = 0, j = 0; begin < n; begin += group, ++j) {
      const int64_t end = n - begin < group ? n : begin + group;
      const F factor = Isa::set(f[j]);
      const F zero_point = Isa::set(kHow == Encode::kU4Divide ? zero_points[j] : 0.0f);
      int64_t i = begin;
      for (; i + kBlock <= end; i += kBlock) {
        encode_block<kType, kHow>(x + i * kSize<kType>, factor, zero_point, out + i * kBits / 8);
      }
      if (i < end) {
        std::byte tail[kBlock * kSize<kType>] = {};
        uint8_t codes[kBlock];
        std::memcpy(tail, x + i * kSize<kType>, static_cast<size_t>((end - i) * kSize<kType>));
        encode_block<kType, kHow>(tail, factor, zero_point, codes);
        std::memcpy(out + i * kBits / 8, codes, static_cast<size_t>((end - i) * kBits / 8));
      }
    }
  }

  template <Code kCode, DType kType>
  static void decode_row(const uint8_t* in,
                         int64_t n,
                         int64_t group,
                         const float* scales,
                         const float* zero_points,
                         std::byte* out) {
    constexpr int kBits = code_bits(kCode);
    for (int64_t begin = 0, j = 0; begin < n; begin += group, ++j) {
      const int64_t end = n - begin < group ? n : begin + group;
      const F scale = Isa::set(scales[j]);
      const F zero_point = Isa::set(zero_points != nullptr ? zero_points[j] : 0.0f);
      int64_t i = begin;
      for (; i + kBlock <= end; i += kBlock) {
        decode_block<kCode, kType>(in + i * kBits / 8, scale, zero_point, out + i * kSize<kType>);
      }
      if (i < end) {
        uint8_t codes[kBlock] = {};
        std::byte tail[kBlock * kSize<kType>];
        std::memcpy(codes, in + i * kBits / 8, static_cast<size_t>((end - i) * kBits / 8));
        decode_block<kCode, kType>(codes, scale, zero_point, tail);
        std::memcpy(out + i * kSize<kType>, tail, static_cast<size_t>((end - i) * kSize<kType>));
      }
    }
  }

  template <DType kType>
  static void widen_row(const std::byte* x, int64_t n, float* out) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      Isa::store_f32(load<kType>(x + i * kSize<kType>), out + i);
    }
    if (i < n) {
      std::byte tail[kLanes * kSize<kType>] = {};
      float wide[sizeof(F) / sizeof(float)];
      std::memcpy(tail, x + i * kSize<kType>, static_cast<size_t>((n - i) * kSize<kType>));
      Isa::store_f32(load<kType>(tail), wide);
      std::memcpy(out + i, wide, static_cast<size_t>(n - i) * sizeof(float));
    }
  }

  // ---- From run-time arguments to the instantiations.

  template <DType kType>
  static void encode_typed(Encode how,
                           const std::byte* x,
                           int64_t n,
                           int64_t group,
                           const float* f,
                           const float* zero_points,
                           uint8_t* out) {
    switch (how) {
      case Encode::kE4M3Multiply:
        return encode_row<kType, Encode::kE4M3Multiply>(x, n, group, f, zero_points, out);
      case Encode::kE4M3Divide:
        return encode_row<kType, Encode::kE4M3Divide>(x, n, group, f, zero_points, out);
      case Encode::kE4M3Overflow:
        return encode_row<kType, Encode::kE4M3Overflow>(x, n, group, f, zero_points, out);
      case Encode::kI8NearestDivide:
        return encode_row<kType, Encode::kI8NearestDivide>(x, n, group, f, zero_points, out);
      case Encode::kI8AwayMultiply:
        return encode_row<kType, Encode::kI8AwayMultiply>(x, n, group, f, zero_points, out);
      case Encode::kI8TruncateDivide:
        return encode_row<kType, Encode::kI8TruncateDivide>(x, n, group, f, zero_points, out);
      case Encode::kU4Divide:
        return encode_row<kType, Encode::kU4Divide>(x, n, group, f, zero_points, out);
      case Encode::kE2M1Multiply:
        return encode_row<kType, Encode::kE2M1Multiply>(x, n, group, f, zero_points, out);
      case Encode::kE3M2Multiply:
        return encode_row<kType, Encode::kE3M2Multiply>(x, n, group, f, zero_points, out);
      case Encode::kE2M3Multiply:
        return encode_row<kType, Encode::kE2M3Multiply>(x, n, group, f, zero_points, out);
    }
  }

  template <DType kType>
  static void decode_typed(Code code,
                           const uint8_t* in,
                           int64_t n,
                           int64_t group,
                           const float* scales,
                           const float* zero_points,
                           std::byte* out) {
    switch (code) {
      case Code::kE4M3:
        return decode_row<Code::kE4M3, kType>(in, n, group, scales, zero_points, out);
      case Code::kI8:
        return decode_row<Code::kI8, kType>(in, n, group, scales, zero_points, out);
      case Code::kU4:
        return decode_row<Code::kU4, kType>(in, n, group, scales, zero_points, out);
      case Code::kE2M1:
        return decode_row<Code::kE2M1, kType>(in, n, group, scales, zero_points, out);
      case Code::kE3M2:
        return decode_row<Code::kE3M2, kType>(in, n, group, scales, zero_points, out);
      case Code::kE2M3:
        return decode_row<Code::kE2M3, kType>(in, n, group, scales, zero_points, out);
    }
  }

  static void range(const void* x, DType dtype, int64_t n, int64_t group, Range* ranges) {
    const auto* bytes = static_cast<const std::byte*>(x);
    switch (dtype) {
      case DType::kF32:
        return range_row<DType::kF32>(bytes, n, group, ranges);
      case DType::kBF16:
        return range_row<DType::kBF16>(bytes, n, group, ranges);
      default:
        return range_row<DType::kF16>(bytes, n, group, ranges);
    }
  }

  static void encode(Encode how,
                     const void* x,
                     DType dtype,
                     int64_t n,
                     int64_t group,
                     const float* f,
                     const float* zero_points,
                     uint8_t* codes) {
    const auto* bytes = static_cast<const std::byte*>(x);
    switch (dtype) {
      case DType::kF32:
        return encode_typed<DType::kF32>(how, bytes, n, group, f, zero_points, codes);
      case DType::kBF16:
        return encode_typed<DType::kBF16>(how, bytes, n, group, f, zero_points, codes);
      default:
        return encode_typed<DType::kF16>(how, bytes, n, group, f, zero_points, codes);
    }
  }

  static void decode(Code code,
                     const uint8_t* codes,
                     int64_t n,
                     int64_t group,
                     const float* scales,
                     const float* zero_points,
                     void* out,
                     DType dtype) {
    auto* bytes = static_cast<std::byte*>(out);
    switch (dtype) {
      case DType::kF32:
        return decode_typed<DType::kF32>(code, codes, n, group, scales, zero_points, bytes);
      case DType::kBF16:
        return decode_typed<DType::kBF16>(code, codes, n, group, scales, zero_points, bytes);
      default:
        return decode_typed<DType::kF16>(code, codes, n, group, scales, zero_points, bytes);
    }
  }

  static void widen(const void* x, DType dtype, int64_t n, float* out) {
    const auto* bytes = static_cast<const std::byte*>(x);
    switch (dtype) {
      case DType::kF32:
        return widen_row<DType::kF32>(bytes, n, out);
      case DType::kBF16:
        return widen_row<DType::kBF16>(bytes, n, out);
      default:
        return widen_row<DType::kF16>(bytes, n, out);
    }
  }
};

}  // namespace moebius::quant
