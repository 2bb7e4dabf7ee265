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

constexpr Code code_of(Encode encode) {
  switch (encode) {
    case Encode::kE4M3Multiply:
    case Encode::kE4M3Divide:
    case Encode::kE4M3Overflow:
      return Code::kE4M3;
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
  }
  return Code::kE4M3;
}

// Smallest and largest element of a group together with 0; NaN elements are passed over.
struct Range {
  float min = 0.0f;
  float max = 0.0f;

  constexpr float absmax() const { return max >= -min ? max : -min; }  // never -0
};

// x and out are rows of n f32, bf16 or f16 elements (`dtype`).  Elements [j * group, (j + 1) *
// group) share entry j of every per-group array; the last group may be shorter. REQUIRES: n and
// (with more than one group) group times the code width are whole bytes.
struct RowKernels {
  // Widens ranges[j] by the elements of group j.
  void (*range)(const void* x, DType dtype, int64_t n, int64_t group, Range* ranges);

  // zero_points: integers in [0, 15]; read by kU4Divide only.
  void (*encode)(Encode how,
                 const void* x,
                 DType dtype,
                 int64_t n,
                 int64_t group,
                 const float* f,
                 const float* zero_points,
                 uint8_t* codes);

  // out = dtype((value(code) - zero_point) * scale): the difference is exact, the product rounded
  // to f32 and then to dtype.  zero_points: for the integer codes; nullptr = 0.
  void (*decode)(Code code,
                 const uint8_t* codes,
                 int64_t n,
                 int64_t group,
                 const float* scales,
                 const float* zero_points,
                 void* out,
                 DType dtype);

  // out = x: the plain copy of unquantized weights.
  void (*widen)(const void* x, DType dtype, int64_t n, float* out);
};

}  // namespace moebius::quant
