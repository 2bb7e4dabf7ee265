// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How AVX-512 kernels go through the rows and the parts of k of a product; and products of int8.
// Included by files built for AVX-512 VNNI, each of which has its own copy, as in avx512_tiles.h.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "core/ceil_div.h"
#include "experts/cpu/tiles/tile_kernels.h"

namespace moebius::cpu {

namespace avx512 {
namespace {

constexpr int64_t kMostSteps = 16;  // of a part of k: 32 KiB of tiles
constexpr int64_t kMostIntegerRows = 8;
// The hardware's own prefetching stops at each page.  Past the end of the weights, too; a prefetch
// may.
constexpr int64_t kPrefetchAhead = 4096;
// Up to here the next block is fetched beside products; with more rows weights are a small part of
// the time, and their lines would take the place of panels.
constexpr int64_t kMostRowsFetching = 64;

inline void prefetch_lines(const std::byte* from, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += kTileRowBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(from + kPrefetchAhead + line), _MM_HINT_T0);
  }
}

// The next block's units, some in each step.  Why nothing more: a call in the loop over steps would
// cost it its registers.
struct NextBlock {
  const std::byte* at = nullptr;
  int64_t bytes = 0;  // in a step

  void advance() {
    for (int64_t line = 0; line < bytes; line += kTileRowBytes) {
      _mm_prefetch(reinterpret_cast<const char*>(at + line), _MM_HINT_T0);
    }
    at += bytes;
  }
};

// Steps [first, first + steps) of k.
struct Part {
  int64_t first;
  int64_t steps;
};

// Some rows of a panel, all in one tile.
struct Rows {
  const std::byte* a;  // of the part's first step
  float* c;
  const float* scales;  // [rows][groups], or null: 1
};

// Four bytes of a row, in all lanes.
inline __m512i broadcast(const std::byte* a, size_t row, int64_t pair) {
  int value;
  __builtin_memcpy(&value, a + row * kTileRowBytes + pair * 4, 4);
  return _mm512_set1_epi32(value);
}

// body.operator()<kRows>() for a number of rows up to kMost.
template <size_t kMost, typename Body>
void with_rows(int64_t rows, Body body) {
  if constexpr (kMost > 0) {
    rows == static_cast<int64_t>(kMost) ? body.template operator()<kMost>()
                                        : with_rows<kMost - 1>(rows, body);
  }
}

// body(rows, how many, whether they are the first) for groups of at most `most` rows.
template <typename Body>
void for_each_rows(const TileGemm& g, const Part& part, int64_t most, Body body) {
  for (int64_t r = 0; r < g.rows;) {
    const int64_t in_tile = r % kTileRows;
    const int64_t tile = r % kPanelRows / kTileRows;
    const int64_t count = std::min({most, g.rows - r, kTileRows - in_tile});
    const Rows rows = {g.a + (r / kPanelRows * g.steps + part.first) * kStepBytes +
                           tile * kTileBytes + in_tile * kTileRowBytes,
                       g.c + r / kPanelRows * kPanelFloats + tile * 2 * kTileFloats + in_tile * 16,
                       g.row_scales != nullptr ? g.row_scales + r * g.row_groups : nullptr};
    body(rows, count, r == 0);
    r += count;
  }
}

// How many groups those are.
int64_t num_passes(const TileGemm& g, int64_t most) {
  return g.rows / kTileRows * ceil_div(kTileRows, most) + ceil_div(g.rows % kTileRows, most);
}

// num_passes: that fetch.
NextBlock next_block(const TileGemm& g, int64_t num_passes) {
  const auto bytes = static_cast<int64_t>(g.next[0].size());
  if (g.rows > kMostRowsFetching || num_passes < 2) {
    return {};
  }
  const int64_t lines = ceil_div(bytes, num_passes * g.steps * kTileRowBytes);
  return {g.next[0].data(), lines * kTileRowBytes};
}

// body(part) for all of k.  Cut alike for any number of rows, which are to have the same bits.
template <typename Body>
void for_each_part(const TileGemm& g, Body body) {
  for (int64_t first = 0; first < g.steps; first += kMostSteps) {
    body(Part{first, std::min(kMostSteps, g.steps - first)});
  }
}

// C (+)= rows of int8 times tiles.  dpbusd takes activations as unsigned: they are 128 more than
// they are, which is in the sums 128 times those of the weights.  kCounts: the offsets are yet to
// be summed.
template <size_t kRows, bool kCounts>
void multiply_integers(const Part& part,
                       const Rows& rows,
                       const std::byte* b,
                       __m512i (&offsets)[2],
                       NextBlock& next) {
  const __m512i above = _mm512_set1_epi8(static_cast<char>(0x80));
  __m512i sums[kRows][2];
  for (auto& of_row : sums) {
    of_row[0] = of_row[1] = _mm512_setzero_si512();
  }
  __m512i counts[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  const std::byte* a = rows.a;
  for (int64_t s = 0; s < part.steps; ++s, a += kStepBytes, b += kStepBytes) {
    if (kCounts) {
      prefetch_lines(b, kStepBytes);
    } else {
      next.advance();
    }
    for (int64_t row = 0; row < kTileRows; ++row) {
      const __m512i left = _mm512_loadu_si512(b + row * kTileRowBytes);
      const __m512i right = _mm512_loadu_si512(b + kTileBytes + row * kTileRowBytes);
      for (size_t r = 0; r < kRows; ++r) {
        const __m512i all = _mm512_xor_si512(broadcast(a, r, row), above);
        sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], all, left);
        sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], all, right);
      }
      if (kCounts) {
        counts[0] = _mm512_dpbusd_epi32(counts[0], above, left);
        counts[1] = _mm512_dpbusd_epi32(counts[1], above, right);
      }
    }
  }
  if (kCounts) {
    offsets[0] = counts[0];
    offsets[1] = counts[1];
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t tile = 0; tile < 2; ++tile) {
      float* c = rows.c + tile * kTileFloats + r * 16;
      const __m512i sum = _mm512_sub_epi32(sums[r][tile], offsets[tile]);
      _mm512_storeu_si512(c, part.first > 0 ? _mm512_add_epi32(_mm512_loadu_si512(c), sum) : sum);
    }
  }
}

void multiply_integers(const TileGemm& g) {
  NextBlock next = next_block(g, num_passes(g, kMostIntegerRows) - 1);
  for_each_part(g, [&](const Part& part) {
    const std::byte* b = g.units + part.first * kStepBytes;
    __m512i offsets[2];
    for_each_rows(g, part, kMostIntegerRows, [&](const Rows& rows, int64_t count, bool is_first) {
      with_rows<kMostIntegerRows>(count, [&]<size_t kRows>() {
        is_first ? multiply_integers<kRows, true>(part, rows, b, offsets, next)
                 : multiply_integers<kRows, false>(part, rows, b, offsets, next);
      });
    });
  });
}

}  // namespace
}  // namespace avx512

}  // namespace moebius::cpu
