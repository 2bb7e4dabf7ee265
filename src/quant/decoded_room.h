// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The memory for weights [G, N, K] that are decoded to bf16 or f16, some groups at a time.  A group
// takes N x K elements, an f32 scale per row of N and, when scales change along K, the f32 scales
// of `num_blocks` blocks per row.  This header needs no CUDA, because plans use it, too.
#pragma once

#include <algorithm>
#include <cstdint>

namespace moebius::quant {

// The columns of a block are a multiple of this.
inline constexpr int64_t kDecodedStep = 32;

// A GEMM that decodes weights ahead takes so many elements of a group at a time, and no more groups
// than this.
inline constexpr int64_t kDecodedUnit = 32768;
inline constexpr int64_t kMostDecodedAhead = 256;

constexpr int64_t decoded_group_bytes(int64_t n, int64_t k, int64_t num_blocks) {
  return n * (2 * k + 4 + 4 * num_blocks);
}

// The bytes of as many groups as 512 MiB can hold, but at least of one.
constexpr int64_t decoded_bytes(int64_t num_groups, int64_t n, int64_t k, int64_t num_blocks) {
  constexpr int64_t kMostBytes = int64_t{512} << 20;
  const int64_t bytes = decoded_group_bytes(n, k, num_blocks);
  return std::clamp<int64_t>(kMostBytes / bytes, 1, num_groups) * bytes;
}

}  // namespace moebius::quant
