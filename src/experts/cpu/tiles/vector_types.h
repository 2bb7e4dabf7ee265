// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The vectors that the vector tile kernels (vector_tiles.h) are written in, and how numbers of
// fewer bits become f32.  Everything here is static, so that no other file can end up with the
// instruction set that the including file is compiled for.
#pragma once

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>

#include "experts/cpu/tiles/tile_kernels.h"

namespace moebius::cpu {

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kRegisters = 32;
constexpr int kMostRows = 8;  // 16 sums, and the two registers of a row of weights
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kRegisters = 16;
constexpr int kMostRows = 3;  // 12 sums
#else
constexpr int kLanes = 4;
constexpr int kRegisters = 16;
constexpr int kMostRows = 1;
#endif
constexpr int kVectors = static_cast<int>(kBlockColumns) / kLanes;  // per row of C
constexpr int kChunks = 16 / kLanes;                                // per row of a tile

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef int16_t Shorts __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HalfWords __attribute__((vector_size(kLanes * 2)));
typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

template <typename Vector>
inline Vector load(const void* from) {
  Vector v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}
template <typename Vector>
inline void store(void* to, Vector v) {
  __builtin_memcpy(to, &v, sizeof(v));
}
// Returns the same words, of which the compiler knows nothing.
inline Words opaque(Words words) {
#if defined(__AVX512F__)
  asm("" : "+v"(words));
#elif defined(__SSE2__)
  asm("" : "+x"(words));
#endif
  return words;
}
// Returns the same address, of which the compiler does not know that it has read there before.
template <typename T>
inline const T* opaque(const T* at) {
#if defined(__SSE2__)
  asm("" : "+r"(at));
#endif
  return at;
}
// Returns words of the lower halves of `words` and the upper half of `upper`.
inline Words with_upper_half(Words words, uint32_t upper) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return (Words)_mm256_blend_epi16((__m256i)words, (__m256i)(Words{} + upper), 0xaa);
#else
  return opaque((words & 0xffff) | upper);
#endif
}
// Moves two bytes at a time: from(i) is where those at place i come from.
template <typename From>
inline Words move_pairs(Words words, From from) {
  typedef uint16_t Pairs __attribute__((vector_size(kLanes * 4)));
  Pairs order;
  for (int i = 0; i < kLanes * 2; ++i) {
    order[i] = static_cast<uint16_t>(from(i));
  }
  return (Words)__builtin_shuffle((Pairs)words, order);
}
// Turns 16 bytes of two k of four columns, then of two more k, into words of four k.
inline Words columns_of_pairs(Words words) {
  return move_pairs(words, [](int i) { return i / 8 * 8 + i % 2 * 4 + i % 8 / 2; });
}
// The reverse: of four columns the first two bytes of each, then the other two.
inline Words pairs_of_columns(Words words) {
  return move_pairs(words, [](int i) { return i / 8 * 8 + i % 4 * 2 + i % 8 / 4; });
}
inline Floats spread(float value) {
#if defined(__AVX512F__)
  return (Floats)_mm512_set1_ps(value);
#elif defined(__AVX2__)
  return (Floats)_mm256_set1_ps(value);
#else
  return Floats{} + value;
#endif
}
inline Ints spread(int32_t value) {
#if defined(__AVX512F__)
  return (Ints)_mm512_set1_epi32(value);
#elif defined(__AVX2__)
  return (Ints)_mm256_set1_epi32(value);
#else
  return Ints{} + value;
#endif
}
inline Floats as_floats(Words bits) {
  return (Floats)bits;
}
inline Floats to_floats(Words values) {
  return __builtin_convertvector((Ints)values, Floats);
}
// Takes `yes` in lanes where `mask` is all ones, and `no` where it is zero.
inline Words select(Ints mask, Words yes, Words no) {
  const auto m = (Words)mask;
  return (yes & m) | (no & ~m);
}
// Why intrinsics: GCC widens vectors of eight bytes one by one.
inline Words bytes_to_words(const void* bytes) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return (Words)_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(bytes)));
#else
  return __builtin_convertvector(load<Bytes>(bytes), Words);
#endif
}
inline Words halves_to_words(const void* halves) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return (Words)_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(halves)));
#else
  return __builtin_convertvector(load<HalfWords>(halves), Words);
#endif
}

inline Floats multiply_add(Floats a, Floats b, Floats sum) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
  return sum + a * b;
#endif
}

// Adds the products of two pairs of int16 in each lane.
inline Ints multiply_add(Ints a, Ints b, Ints sum) {
#if defined(__AVX512F__)
  return sum + (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return sum + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return sum + (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  const auto low = [](Ints v) { return (Ints)((Words)v << 16) >> 16; };
  return sum + low(a) * low(b) + (a >> 16) * (b >> 16);
#endif
}

// Widens numbers of fewer bits.  Their magnitude is a code with `kMantissa` bits of mantissa;
// subnormal codes are integers times 2^kLeast; the sign is in bit 31.
template <int kMantissa, int kBias, int kLeast>
inline Words small_float(Words magnitude, Words sign) {
  const Words normal = (magnitude << (23 - kMantissa)) + (uint32_t{127 - kBias} << 23);
  constexpr float kUnit = 1.0f / static_cast<float>(1 << -kLeast);
  const auto subnormal = (Words)(to_floats(magnitude) * kUnit);
  return select((Ints)magnitude < (1 << kMantissa), subnormal, normal) | sign;
}

inline Floats f16_to_floats(Words bits) {
  const Words magnitude = bits & 0x7fff;
  const Words sign = (bits & 0x8000) << 16;
  const Words finite = small_float<10, 15, -24>(magnitude, sign);
  const Words other = (magnitude << 13) | sign | 0x7f800000;
  return as_floats(select((Ints)magnitude >= 0x7c00, other, finite));
}

// Its bits stand for 2^-120 times its value where f32 has them, also where that is subnormal.
inline Floats e4m3_to_floats(Words magnitude, Words sign) {
  const auto value = (Words)(as_floats(magnitude << 20 | sign) * 0x1p120f);
  return as_floats(value | ((Words)((Ints)magnitude == 0x7f) & 0x7fc00000));
}

// 2^-127 is subnormal, and 255 is NaN.
inline Floats e8m0_to_floats(Words codes) {
  const auto is_other = (Words)(((Ints)codes == 0) | ((Ints)codes == 255));
  return as_floats(codes << 23 | (is_other & 0x00400000));
}

// Widens the lowest four bits of `codes`, which are e2m1.
inline Floats e2m1_to_floats(Words codes) {
#if defined(__AVX512F__)
  const __m512 values =
      _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
  return (Floats)_mm512_permutexvar_ps((__m512i)codes, values);
#elif defined(__AVX2__)
  const __m256 values = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
  const auto magnitude = (Words)_mm256_permutevar8x32_ps(values, (__m256i)codes);
  return as_floats(magnitude | (codes & 8) << 28);
#else
  return as_floats(small_float<1, 1, -1>(codes & 7, (codes & 8) << 28));
#endif
}

// Loads scales [i, i + kLanes) of a group.
inline Floats load_scales(const std::byte* scales, DType dtype, int64_t i) {
  const auto halves = [&] { return halves_to_words(scales + i * 2); };
  switch (dtype) {
    case DType::kBF16:
      return as_floats(halves() << 16);
    case DType::kF16:
      return f16_to_floats(halves());
    case DType::kE8M0:
      return e8m0_to_floats(bytes_to_words(scales + i));
    default:
      return load<Floats>(scales + i * 4);
  }
}

}  // namespace

}  // namespace moebius::cpu
