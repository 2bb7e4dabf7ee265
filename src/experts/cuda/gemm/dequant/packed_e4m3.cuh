// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// nvfp4's scales as experts keep them beside packed codes (packed_e2m1.cuh).  A byte has other bits
// than e4m3's, of which a mask and constant bits make bf16.  They are eight bits of the folded
// bf16, the lowest five of its exponent and the highest three of its mantissa: bits 0 to 3 of the
// byte are bits 8 to 11, and bits 4 to 7 are bits 4 to 7.  So a byte that fills a half twice needs
// only to be masked.  There is no room for a sign or for 0: codes of negative scales are packed
// with the other sign, and those whose scale is 0 as zeros.
#pragma once

#include <cstdint>

#include "core/cuda/mma.cuh"

namespace moebius::cuda::packed_e4m3 {

// Scales that are folded into bf16 are 2^kFoldedExponent times as large.  That is what e2m1 codes
// lack, less what keeps the largest e4m3 scale, and 2^17, within bf16.
inline constexpr int kFoldedExponent = 110;
inline constexpr float kFoldedFactor = 0x1p110f;

inline constexpr uint32_t kOwnBits = 0x0ff00ff0u;    // of a byte that fills a half twice
inline constexpr uint32_t kUpperBits = 0x70007000u;  // those of the exponents of all folded scales

// Returns two folded scales, those of the lowest two bytes.  `upper`: kUpperBits, which takes an
// instruction less from a register (ptx::kept).
__device__ __forceinline__ uint32_t folded_pair(uint32_t bytes, uint32_t upper = kUpperBits) {
  return ptx::and_or(__byte_perm(bytes, 0, 0x1100), kOwnBits, upper);
}

// Returns the magnitude of the scale, or 2^-13 where it was 0.
__device__ __forceinline__ float value(uint8_t packed) {
  return __uint_as_float(folded_pair(packed) << 16) * (1.0f / kFoldedFactor);
}

// A scale, and what becomes of each word of its codes (codes & mask) ^ signs.
struct Packed {
  uint8_t scale;
  uint32_t mask;
  uint32_t signs;
};
// `scale`: the value of an e4m3 code.
__device__ __forceinline__ Packed packed(float scale) {
  const uint32_t folded = __float_as_uint(scale * kFoldedFactor) >> 16;
  const auto byte = static_cast<uint8_t>((folded & 0xf0u) | (folded >> 8 & 0x0fu));
  return {byte, scale == 0.0f ? 0u : ~0u, scale < 0.0f ? 0x88888888u : 0u};
}

}  // namespace moebius::cuda::packed_e4m3
