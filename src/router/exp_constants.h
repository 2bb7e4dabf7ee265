// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Constants of exp_nonpositive() (exp.h) for its scalar and its vector versions.
// exp(x) = 2^n * e^r with n = round(x / ln 2) and |r| <= ln(2) / 2.  e^r comes from its Taylor
// series up to r^7; the rest is below 6e-9.  ln 2 is split so that n * kLn2High is exact.
#pragma once

namespace moebius::router {

inline constexpr float kExpLowest = -104.0f;  // e^-104 rounds to 0 in f32
inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2High = 0.693359375f;  // 10 significant bits
inline constexpr float kLn2Low = -2.12194440e-4f;
inline constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: adding it drops the fraction
// Why these are no array: a kernel cannot read a host's array.
inline constexpr float kTaylor7 = 1.0f / 5040;
inline constexpr float kTaylor6 = 1.0f / 720;
inline constexpr float kTaylor5 = 1.0f / 120;
inline constexpr float kTaylor4 = 1.0f / 24;
inline constexpr float kTaylor3 = 1.0f / 6;
inline constexpr float kTaylor2 = 1.0f / 2;

}  // namespace moebius::router
