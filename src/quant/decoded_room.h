// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Room for weights [G, N, K] that are decoded to bf16, some groups at a time: of each N x K
// elements, an f32 scale per column and, where they change along K, those of `num_blocks` blocks.
// Needs no CUDA: plans count with it, too.
#pragma once

#include <algorithm>
#include <cstdint>

namespace moebius::quant {

// Columns of a block come in multiples of this.
inline constexpr int64_t kDecodedStep = 32;

// Of so many rows per group, on average, decoding into memory pays.  Why 128: by their codes
// DeepSeek-V3's experts on an H200 take 0.6 to 0.9 ms per 64 rows, decoded about 2 ms for any
// number below 128; groups differ, so that 128 rows on average are often three times 64.
inline constexpr int64_t kDecodedRows = 128;

constexpr int64_t decoded_group_bytes(int64_t n, int64_t k, int64_t num_blocks) {
  return n * (2 * k + 4 + 4 * num_blocks);
}

// As many groups as 512 MiB hold, at least one.
constexpr int64_t decoded_bytes(int64_t num_groups, int64_t n, int64_t k, int64_t num_blocks) {
  constexpr int64_t kMostBytes = int64_t{512} << 20;
  const int64_t bytes = decoded_group_bytes(n, k, num_blocks);
  return std::clamp<int64_t>(kMostBytes / bytes, 1, num_groups) * bytes;
}

}  // namespace moebius::quant
