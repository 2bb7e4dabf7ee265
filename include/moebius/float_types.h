// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Small floating-point formats with exact conversions.  These functions are the specification, and
// tests compare the vectorised code of src/quant/cpu with them code by code.
//
// Sources: IEEE 754 (f16), OCP 8-bit Floating Point v1.0 (e4m3, e5m2), OCP Microscaling v1.0 (e2m1,
// e3m2, e2m3, e8m0).  Values are rounded to the nearest, ties to even.  "Saturating" means what
// CUDA's `satfinite` conversions do: infinities and values beyond the largest finite one become the
// largest finite value.  NaN stays NaN in a format that has NaN, and becomes the largest positive
// value in others.
// Thread-safety: all functions are pure.
#pragma once

#include <bit>
#include <cstdint>

#include "moebius/api.h"

namespace moebius MOEBIUS_API {

namespace detail {

// A format with E exponent bits and M mantissa bits.  kMaxCode is the largest finite code; kInfCode
// and kNanCode are kNone in formats that lack infinity or NaN.
template <int E, int M, uint32_t kMaxCode, uint32_t kInfCode, uint32_t kNanCode>
struct Minifloat {
  static constexpr uint32_t kNone = 0xffffffffu;
  static constexpr int kBias = (1 << (E - 1)) - 1;
  static constexpr uint32_t kSign = 1u << (E + M);

  static constexpr uint32_t encode(float value, bool saturate) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (u >> 31) ? kSign : 0;
    const uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
      return kNanCode == kNone ? kMaxCode : (kNanCode | sign);
    }
    const uint32_t code = magnitude == 0x7f800000u ? kMaxCode + 1 : round(magnitude);
    if (code <= kMaxCode) {
      return code | sign;
    }
    if (saturate || (kInfCode == kNone && kNanCode == kNone)) {
      return kMaxCode | sign;
    }
    // NOLINTNEXTLINE(bugprone-branch-clone): both branches are alike for some formats only
    return (kInfCode != kNone ? kInfCode : kNanCode) | sign;
  }

  static constexpr float decode(uint32_t code) {
    const uint32_t sign = (code & kSign) ? 0x80000000u : 0;
    const uint32_t magnitude = code & (kSign - 1);
    if (magnitude > kMaxCode) {
      return std::bit_cast<float>(sign | (magnitude == kInfCode ? 0x7f800000u : 0x7fc00000u));
    }
    const uint32_t mantissa = magnitude & ((1u << M) - 1);
    const int exponent = static_cast<int>(magnitude >> M);
    if (exponent == 0) {
      // mantissa * 2^(1 - bias - M) is exact: both factors are representable in f32.
      const float step = std::bit_cast<float>(static_cast<uint32_t>(128 - kBias - M) << 23);
      const float result = static_cast<float>(mantissa) * step;
      return sign ? -result : result;
    }
    return std::bit_cast<float>(sign | (static_cast<uint32_t>(exponent - kBias + 127) << 23) |
                                (mantissa << (23 - M)));
  }

 private:
  // The code of the nearest value if exponents had no upper bound; it may exceed kMaxCode.
  static constexpr uint32_t round(uint32_t magnitude) {
    const int exponent = static_cast<int>(magnitude >> 23) - 127;
    constexpr int kMinExponent = 1 - kBias;
    const bool subnormal = exponent < kMinExponent;
    const int shift = 23 - M + (subnormal ? kMinExponent - exponent : 0);
    if (shift > 24) {
      return 0;  // below half of the smallest subnormal, as every f32 subnormal is
    }
    const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t odd = (significand >> shift) & 1u;
    const uint32_t rounded = (significand + (1u << (shift - 1)) - 1 + odd) >> shift;
    // A carry out of the mantissa moves into the exponent field by itself.
    return subnormal ? rounded : (static_cast<uint32_t>(exponent + kBias - 1) << M) + rounded;
  }
};

inline constexpr uint32_t kNone = 0xffffffffu;
using HalfFormat = Minifloat<5, 10, 0x7bff, 0x7c00, 0x7e00>;
using E4M3Format = Minifloat<4, 3, 0x7e, kNone, 0x7f>;
using E5M2Format = Minifloat<5, 2, 0x7b, 0x7c, 0x7e>;
using E2M1Format = Minifloat<2, 1, 0x7, kNone, kNone>;
using E3M2Format = Minifloat<3, 2, 0x1f, kNone, kNone>;
using E2M3Format = Minifloat<2, 3, 0x1f, kNone, kNone>;

}  // namespace detail

struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  constexpr explicit BFloat16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((u >> 16) | 0x40u);  // keep NaN a (quiet) NaN
    } else {
      bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  constexpr explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  constexpr explicit Float16(float value)
      : bits(static_cast<uint16_t>(detail::HalfFormat::encode(value, /*saturate=*/false))) {}
  constexpr explicit operator float() const { return detail::HalfFormat::decode(bits); }
};

// A float of 8 bits.  Conversion from float saturates; `overflowing` gives NaN (e4m3) or infinity
// (e5m2) instead, as a plain cast does elsewhere.
template <typename Format>
struct Float8 {
  uint8_t bits = 0;

  Float8() = default;
  constexpr explicit Float8(float value)
      : bits(static_cast<uint8_t>(Format::encode(value, /*saturate=*/true))) {}
  static constexpr Float8 overflowing(float value) {
    Float8 result;
    result.bits = static_cast<uint8_t>(Format::encode(value, /*saturate=*/false));
    return result;
  }
  constexpr explicit operator float() const { return Format::decode(bits); }
};
using F8E4M3 = Float8<detail::E4M3Format>;
using F8E5M2 = Float8<detail::E5M2Format>;

// Codes of the packed formats, in the low 4 bits (e2m1) or 6 bits (e3m2, e2m3).  They saturate.
constexpr uint8_t e2m1_from_float(float value) {
  return static_cast<uint8_t>(detail::E2M1Format::encode(value, true));
}
constexpr float e2m1_to_float(uint8_t code) {
  return detail::E2M1Format::decode(code);
}
constexpr uint8_t e3m2_from_float(float value) {
  return static_cast<uint8_t>(detail::E3M2Format::encode(value, true));
}
constexpr float e3m2_to_float(uint8_t code) {
  return detail::E3M2Format::decode(code);
}
constexpr uint8_t e2m3_from_float(float value) {
  return static_cast<uint8_t>(detail::E2M3Format::encode(value, true));
}
constexpr float e2m3_to_float(uint8_t code) {
  return detail::E2M3Format::decode(code);
}

// e8m0 is 2^(code - 127).  Code 0 is 2^-127, a subnormal f32, and code 255 is NaN.
constexpr float e8m0_to_float(uint8_t code) {
  if (code == 255) {
    return std::bit_cast<float>(0x7fc00000u);
  }
  return std::bit_cast<float>(code == 0 ? 0x00400000u : static_cast<uint32_t>(code) << 23);
}

inline constexpr float kE4M3Max = 448.0f;
inline constexpr float kE5M2Max = 57344.0f;
inline constexpr float kE2M1Max = 6.0f;
inline constexpr float kE3M2Max = 28.0f;
inline constexpr float kE2M3Max = 7.5f;

}  // namespace moebius
