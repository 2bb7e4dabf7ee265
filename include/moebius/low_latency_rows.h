// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How LowLatency (low_latency.h) casts, codes and sums rows.
// Thread-safety: these are enumerations only.
#pragma once

#include <cstdint>

#include "moebius/api.h"

namespace moebius MOEBIUS_API {

// This is what combine sends back, and how it sums.  Sums are in f32 and begin with 0.
enum class LowLatencySum : uint8_t {
  // Every selection's row goes back; the token's rank weights and sums them in order of slots, and
  // rounds once.
  kSelections,
  // The experts' rank weights and sums its rows of a token in order of slots, and rounds; the
  // token's rank sums these in order of rank, and rounds.  One row per copy crosses instead of one
  // per selection.  The send half waits for the weights of the live ranks.  Unsupported over
  // several nodes.
  kRanks,
};

// How a dispatch casts rows.
enum class LowLatencyCast : uint8_t {
  kNone,      // rows travel in in_dtype
  kFp8,       // e4m3 with f32 scales per 1x128: amax floored at 1e-4, q = x * (448 / amax)
  kFp8Ue8m0,  // the same with scales rounded up to powers of two
  // With either cast a group with an infinity has an infinite scale, and so reads as NaN.
};

// How the scales of a cast lie in memory; G = H / 128.
enum class LowLatencyScales : uint8_t {
  kRows,           // f32 [L, rows, G]
  kColumns,        // f32 [L, G, rows], as GEMMs with block scales load them
  kPackedColumns,  // i32 [L, ceil(G / 4), rows]: the exponents (e8m0) of four groups, the first in
                   // the lowest byte, 0 where there is no group; with kFp8Ue8m0 only
};

// How a combine sends rows back.
enum class LowLatencyCoding : uint8_t {
  kNone,  // in in_dtype
  // 10 bits per element: a sign and 9 bits on a logarithmic scale per 128 elements, 168 bytes for
  // them.  With log_max = log2 of the largest magnitude, log_min = log2 of the smallest that is
  // normal, but at least log_max - 32, and step = (log_max - log_min) / 510, a code c > 0 stands
  // for 2^(log_min + (c - 1) step); it is the nearest on this scale, and what is smaller has c = 1.
  // 0 stands for 0 and for subnormal numbers.  So an element changes by a factor of 2^(step / 2) at
  // most, unless it is below 2^-32 of the largest.  A group with a NaN or an infinity reads as NaN.
  // src/comm/low_latency/logfmt.h has every operation; CPUs and GPUs give the same bits.
  kLogFmt10,
};

}  // namespace moebius
