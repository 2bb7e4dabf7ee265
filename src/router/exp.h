// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of scoring that one C library computes differently from another.  Here they are
// adds, multiplies and divides in a stated order, so that every CPU and GPU gives the same bits.
#pragma once

#include <bit>
#include <cstdint>

#include "router/exp_constants.h"

namespace moebius::router {

namespace detail {

// 2^n for -126 <= n <= 127.
constexpr float power_of_two(int n) {
  return std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23);
}

// log(1 + z) for 0 <= z <= 1.  It equals 2 atanh(s) with s = z / (2 + z) <= 1/3, which is computed
// by its series up to s^15; the relative rest is below 2e-9.  The error is within 3 units in the
// last place, and NaN stays NaN.
constexpr float log1p_unit(float z) {
  const float s = z / (2.0f + z);
  const float s2 = s * s;
  float p = 1.0f / 15;
  p = p * s2 + 1.0f / 13;
  p = p * s2 + 1.0f / 11;
  p = p * s2 + 1.0f / 9;
  p = p * s2 + 1.0f / 7;
  p = p * s2 + 1.0f / 5;
  p = p * s2 + 1.0f / 3;
  const float twice = s + s;
  return twice + twice * (s2 * p);
}

}  // namespace detail

// e^x for x <= 0.  The error is within 1.5 units in the last place, e^-inf is 0, and NaN stays NaN.
constexpr float exp_nonpositive(float x) {
  if (x != x) {
    return x;
  }
  x = kExpLowest > x ? kExpLowest : x;
  const float n = (x * kLog2E + kRoundToInteger) - kRoundToInteger;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = kTaylor7;
  p = p * r + kTaylor6;
  p = p * r + kTaylor5;
  p = p * r + kTaylor4;
  p = p * r + kTaylor3;
  p = p * r + kTaylor2;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n may be too small for a normal number, so two factors are used; only the second one rounds.
  const int exponent = static_cast<int>(n);
  const int half = exponent >> 1;
  return p * detail::power_of_two(half) * detail::power_of_two(exponent - half);
}

constexpr float sigmoid(float x) {
  const float z = exp_nonpositive(x < 0.0f ? x : -x);  // overflows for no x
  return (x >= 0.0f ? 1.0f : z) / (1.0f + z);
}

constexpr float softplus(float x) {
  const float z = exp_nonpositive(x < 0.0f ? x : -x);
  return (x < 0.0f ? 0.0f : x) + detail::log1p_unit(z);
}

}  // namespace moebius::router
