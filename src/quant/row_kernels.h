// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Row kernels: the functions that make up an implementation of the quant stage on the CPU.  They
// encode and decode rows by given factors.  Code that all implementations share (group_rule.h,
// quantize.cc, weight_rows.cc) decides which elements share a scale and what the scale is.
// `ref` specifies every function, and the others give the same bits; any NaN counts as equal to any
// other NaN of the same dtype.
#pragma once

#include <cstdint>
#include <utility>

#include "moebius/dtype.h"

namespace moebius::quant {

// The element codes that are stored.
enum class Code : uint8_t { kE4M3, kI8, kU4, kE2M1, kE3M2, kE2M3 };
inline constexpr int kNumCodes = 6;

constexpr int code_bits(Code code) {
  return code <= Code::kI8 ? 8 : code == Code::kE3M2 || code == Code::kE2M3 ? 6 : 4;
}

// How an element x becomes a code.  `f` is the group's factor.  A clamp turns NaN into the upper
// bound unless a comment says otherwise.  The minifloats round to nearest even and keep the sign of
// zero.
enum class Encode : uint8_t {
  kE4M3Multiply,      // e4m3(clamp(x * f, -448, 448))
  kE4M3Divide,        // e4m3(clamp(x / f, -448, 448))
  kE4M3Overflow,      // e4m3(x * f); NaN stays NaN, beyond 448 becomes NaN
  kI8NearestDivide,   // clamp(x / f, -128, 127) to the nearest, ties to even; NaN gives 0
  kI8AwayMultiply,    // clamp(x * f, -128, 127) to the nearest, ties away from zero; NaN gives 0
  kI8TruncateDivide,  // clamp(x / f, -128, 127) toward zero; NaN gives 0
  kU4Divide,      // clamp(nearest(x / f) + zero_point, 0, 15), ties to even; NaN gives zero_point
  kE2M1Multiply,  // e2m1(clamp(x * f, -6, 6))
  kE3M2Multiply,  // e3m2(clamp(x * f, -28, 28))
  kE2M3Multiply,  // e2m3(clamp(x * f, -7.5, 7.5))
};
inline constexpr int kNumEncodes = 10;

// Whether elements are divided by the factor; otherwise they are multiplied.
constexpr bool divides(Encode how) {
  return how == Encode::kE4M3Divide || how == Encode::kI8NearestDivide ||
         how == Encode::kI8TruncateDivide || how == Encode::kU4Divide;
}

// A value as a type, so that generic lambdas can use it as a template argument.
template <auto kValue>
struct Constant {
  static constexpr auto value = kValue;
};

namespace detail {
template <typename Enum, typename Fn, int... kValues>
constexpr void visit(Enum value, const Fn& fn, std::integer_sequence<int, kValues...>) {
  static_cast<void>(
      ((static_cast<int>(value) == kValues && (fn(Constant<static_cast<Enum>(kValues)>{}), true)) ||
       ...));
}
}  // namespace detail

// These functions call fn with the enumerator as a Constant.  Kernels use them, too.
template <typename Fn>
constexpr void visit_encode(Encode how, const Fn& fn) {
  detail::visit(how, fn, std::make_integer_sequence<int, kNumEncodes>{});
}
template <typename Fn>
constexpr void visit_code(Code code, const Fn& fn) {
  detail::visit(code, fn, std::make_integer_sequence<int, kNumCodes>{});
}

// Relies on the order of the enumerators.
constexpr Code code_of(Encode how) {
  return how <= Encode::kE4M3Overflow       ? Code::kE4M3
         : how <= Encode::kI8TruncateDivide ? Code::kI8
         : how == Encode::kU4Divide         ? Code::kU4
         : how == Encode::kE2M1Multiply     ? Code::kE2M1
         : how == Encode::kE3M2Multiply     ? Code::kE3M2
                                            : Code::kE2M3;
}

// The smallest and the largest of 0 and the elements of a group; NaN elements are skipped.
struct Range {
  float min = 0.0f;
  float max = 0.0f;

  constexpr float absmax() const { return max >= -min ? max : -min; }  // never -0
};

// Rows of n f32, bf16 or f16 elements (`dtype`).  Elements [j * group, (j + 1) * group) share entry
// j of every per-group array; the last group may be shorter.  REQUIRES: n and (with more than one
// group) group times the code width are whole bytes.
struct EncodeRow {
  Encode how;
  const void* x;  // [n]
  DType dtype;
  int64_t n;
  int64_t group;
  const float* factors;      // f of each group
  const float* zero_points;  // integers in [0, 15] of each group; read by kU4Divide only
  uint8_t* codes;
};

// out = dtype((value(code) - zero_point) * scale): the difference is exact, the product is rounded
// to f32 and then to dtype.
struct DecodeRow {
  Code code;
  const uint8_t* codes;
  int64_t n;
  int64_t group;
  const float* scales;       // of each group
  const float* zero_points;  // of each group, for the integer codes; nullptr: 0
  void* out;                 // [n]
  DType dtype;
};

struct RowKernels {
  // Widens ranges[j] by the elements of group j.
  void (*range)(const void* x, DType dtype, int64_t n, int64_t group, Range* ranges);
  void (*encode)(const EncodeRow& row);
  void (*decode)(const DecodeRow& row);
  // out = x as f32; this copies unquantized weights.
  void (*widen)(const void* x, DType dtype, int64_t n, float* out);
};

}  // namespace moebius::quant
