// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Codes of e2m1 as experts keep them in memory of their own: eight neighbours in a word, as in the
// format itself, but with their bits where few instructions make bf16 of them.  A pair has two
// neighbours, one in either half.  As bf16 2^-126 times its values, its bits are those of
// kPairBits.  Pair 0 lies there, and shifts bring pairs 1 and 2 there.  Pair 3 has what bits are
// left, in the other half, and a product brings them there from the word that has been rotated for
// pair 2.  Why so: the pipe of logic takes an instruction every other cycle, and products go
// elsewhere.
#pragma once

#include <cstdint>

namespace moebius::cuda::packed_e2m1 {

inline constexpr uint32_t kPairBits = 0x81c081c0u;  // sign, and three bits of magnitude
inline constexpr uint32_t kLastPair = 0x001b001bu;  // of the rotated word

// Returns the first of the two codes of a pair.  Why not 2 * i: a product of few_rows_gemm.cu takes
// the first or the last two pairs, and by codes as they come these are 0, 1, 4 and 5, or the
// others.  So sums have the same bits.
__host__ __device__ constexpr int first_code(int i) {
  return i % 2 * 4 + i / 2 * 2;
}

// Brings two neighbouring codes, the lowest bits of a word, to the lowest four bits of its halves,
// and back.
__device__ __forceinline__ uint32_t to_halves(uint32_t codes) {
  return (codes & 0xfu) | (codes & 0xf0u) << 12;
}
__device__ __forceinline__ uint32_t of_halves(uint32_t halves) {
  return (halves & 0xfu) | (halves >> 12 & 0xf0u);
}
// These make the bf16 of codes in halves, and the reverse.
__device__ __forceinline__ uint32_t pair_of_codes(uint32_t halves) {
  return (halves & 0x00080008u) << 12 | (halves & 0x00070007u) << 6;
}
__device__ __forceinline__ uint32_t codes_of_pair(uint32_t pair) {
  return (pair >> 12 & 0x00080008u) | (pair >> 6 & 0x00070007u);
}

// Sets `pairs` to the bf16 of a packed word, which are 2^-126 times the codes' values (0.5 becomes
// subnormal).
__device__ __forceinline__ void to_pairs(uint32_t packed, uint32_t (&pairs)[4]) {
  const uint32_t rotated = __funnelshift_l(packed, packed, 6);
  pairs[0] = packed & kPairBits;
  pairs[1] = packed << 3 & kPairBits;
  pairs[2] = rotated & kPairBits;
  pairs[3] = (rotated & kLastPair) * 0x4108u & kPairBits;
}

__device__ __forceinline__ uint32_t packed(uint32_t codes) {
  const auto pair = [&](int i) { return to_halves(codes >> 4 * first_code(i)); };
  const uint32_t last = (pair(3) >> 2 & 0x00030003u) | (pair(3) << 3 & 0x00180018u);
  return pair_of_codes(pair(0)) | pair_of_codes(pair(1)) >> 3 | pair_of_codes(pair(2)) >> 6 |
         __funnelshift_r(last, last, 6);
}
__device__ __forceinline__ uint32_t unpacked(uint32_t packed) {
  uint32_t pairs[4];
  to_pairs(packed, pairs);
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes |= of_halves(codes_of_pair(pairs[i])) << 4 * first_code(i);
  }
  return codes;
}

}  // namespace moebius::cuda::packed_e2m1
