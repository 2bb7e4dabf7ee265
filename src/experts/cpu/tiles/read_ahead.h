// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// While the last blocks of a task are multiplied, the data that is read after them is fetched to
// L2.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "experts/cpu/tiles/tile_kernels.h"

namespace moebius::cpu {

// Blocks beside which later data is fetched.  With the shapes of most models a block of GEMM1 is as
// large as three of GEMM2, so that four blocks are enough for one to come at memory's rate.
inline constexpr int64_t kBlocksAhead = 4;

// The part of `later`, in whole lines, that is fetched beside block `block` of `num_blocks`.
inline std::span<const std::byte> part_ahead(std::span<const std::byte> later,
                                             int64_t block,
                                             int64_t num_blocks) {
  const int64_t num_parts = std::min(kBlocksAhead, num_blocks);
  const int64_t part = block - (num_blocks - num_parts);
  if (part < 0) {
    return {};
  }
  const auto lines = static_cast<int64_t>(later.size()) / kTileRowBytes;
  const auto begin_of = [&](int64_t i) {
    return static_cast<size_t>(lines * i / num_parts * kTileRowBytes);
  };
  return later.subspan(begin_of(part), begin_of(part + 1) - begin_of(part));
}

// On Intel, while kPages pages of codes are read, the lines of the next ones are fetched to L2,
// from each page by turns.
struct PagesAhead {
  static constexpr int64_t kPages = 4;
  static constexpr int64_t kPageBytes = 4096;

  // Returns where the lines begin that are fetched while the codes at `at` are read: the turn of
  // kPages lines, one a page, that has the same place in the next pages as `at` has in its own.
  // Beyond the end of what is read in order, it is counted on from where the codes begin that come
  // after.
  [[gnu::always_inline]] static const std::byte* turn(const std::byte* at, const TileGemm& g) {
    constexpr int64_t kAll = kPages * kPageBytes;
    const auto offset = static_cast<int64_t>(reinterpret_cast<uintptr_t>(at) % kAll);
    const std::byte* ahead =
        at + (kAll - offset) + offset / (kPages * kTileRowBytes) * kTileRowBytes;
    return ahead < g.codes_end ? ahead : g.codes_after + (ahead - g.codes_end);
  }
  // The place of line `line` from there on.
  [[gnu::always_inline]] static int64_t place(int64_t line) {
    return line % kPages * kPageBytes + line / kPages * kTileRowBytes;
  }
};

}  // namespace moebius::cpu
