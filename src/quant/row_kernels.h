// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Row kernels: what an implementation of the quant stage consists of.  They encode and decode rows
// by given factors; which elements share a scale and what the scale is, is decided once for all
// implementations (group_rule.h, quantize.cc, weight_rows.cc).
// `ref` specifies every function; the others give the same bits (any NaN counts as equal to any
// other NaN of the same dtype).
#pragma once

#include <cstdint>

#include "moebius/dtype.h"

namespace moebius::quant {

// Element codes as they are stored.
enum class Code : uint8_t { kE4M3, kI8, kU4, kE2M1, kE3M2, kE2M3 };

constexpr int code_bits(Code code) {
  switch (code) {
    case Code::kE4M3:
    case Code::kI8:
      return 8;
    case Code::kE3M2:
    case Code::kE2M3:
      return 6;
    case Code::kU4:
    case Code::kE2M1:
      return 4;
  }
  return 0;
}

// How an element becomes a code.  `f` is the group's factor; clamps turn NaN into the upper bound
// unless said otherwise.  The minifloats round to nearest even and keep the sign of zero.
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

// Whether an element is divided by the factor, not multiplied.
constexpr bool divides(Encode how) {
  return how == Encode::kE4M3Divide || how == Encode::kI8NearestDivide ||
         how == Encode::kI8TruncateDivide || how == Encode::kU4Divide;
}

// A value as a type, so that generic lambdas can use it as a template argument.
template <auto kValue>
struct Constant {
  static constexpr auto value = kValue;
};

// fn(the enumerator as a Constant).  Kernels call these, too.
template <typename Fn>
constexpr void visit_encode(Encode how, const Fn& fn) {
  switch (how) {
    case Encode::kE4M3Multiply:
      return fn(Constant<Encode::kE4M3Multiply>{});
    case Encode::kE4M3Divide:
      return fn(Constant<Encode::kE4M3Divide>{});
    case Encode::kE4M3Overflow:
      return fn(Constant<Encode::kE4M3Overflow>{});
    case Encode::kI8NearestDivide:
      return fn(Constant<Encode::kI8NearestDivide>{});
    case Encode::kI8AwayMultiply:
      return fn(Constant<Encode::kI8AwayMultiply>{});
    case Encode::kI8TruncateDivide:
      return fn(Constant<Encode::kI8TruncateDivide>{});
    case Encode::kU4Divide:
      return fn(Constant<Encode::kU4Divide>{});
    case Encode::kE2M1Multiply:
      return fn(Constant<Encode::kE2M1Multiply>{});
    case Encode::kE3M2Multiply:
      return fn(Constant<Encode::kE3M2Multiply>{});
    case Encode::kE2M3Multiply:
      return fn(Constant<Encode::kE2M3Multiply>{});
  }
}
template <typename Fn>
constexpr void visit_code(Code code, const Fn& fn) {
  switch (code) {
    case Code::kE4M3:
      return fn(Constant<Code::kE4M3>{});
    case Code::kI8:
      return fn(Constant<Code::kI8>{});
    case Code::kU4:
      return fn(Constant<Code::kU4>{});
    case Code::kE2M1:
      return fn(Constant<Code::kE2M1>{});
    case Code::kE3M2:
      return fn(Constant<Code::kE3M2>{});
    case Code::kE2M3:
      return fn(Constant<Code::kE2M3>{});
  }
}

constexpr Code code_of(Encode how) {
  switch (how) {
    case Encode::kI8NearestDivide:
    case Encode::kI8AwayMultiply:
    case Encode::kI8TruncateDivide:
      return Code::kI8;
    case Encode::kU4Divide:
      return Code::kU4;
    case Encode::kE2M1Multiply:
      return Code::kE2M1;
    case Encode::kE3M2Multiply:
      return Code::kE3M2;
    case Encode::kE2M3Multiply:
      return Code::kE2M3;
    default:
      return Code::kE4M3;
  }
}

// Smallest and largest element of a group together with 0; NaN elements are passed over.
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
  // out = x: the plain copy of unquantized weights.
  void (*widen)(const void* x, DType dtype, int64_t n, float* out);
};

}  // namespace moebius::quant
