// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// SplitMix64 (Steele, Lea, Flood 2014): random numbers that can be computed by position and are the
// same on every machine.
#pragma once

#include <cstdint>

namespace moebius::splitmix64 {

inline constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;  // added to the state for each number

// The number that belongs to a state.
constexpr uint64_t mix(uint64_t state) {
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
  return state ^ (state >> 31);
}

// Number `position` (counted from 0) in the sequence of `seed`.
constexpr uint64_t number(uint64_t seed, uint64_t position) {
  return mix(seed + (position + 1) * kStep);
}

constexpr uint64_t next(uint64_t& state) {
  state += kStep;
  return mix(state);
}

}  // namespace moebius::splitmix64
