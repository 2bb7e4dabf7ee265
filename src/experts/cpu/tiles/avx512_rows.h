// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How AVX-512 kernels go through the rows and the parts of k of a product; and products of int8.
// Only files built for AVX-512 VNNI include this header; each has its own copy, as in
// avx512_tiles.h.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/ceil_div.h"
#include "experts/cpu/tiles/read_ahead.h"
#include "experts/cpu/tiles/tile_kernels.h"

namespace moebius::cpu {

namespace avx512 {
namespace {

constexpr int64_t kMostSteps = 16;  // of a part of k: 32 KiB of tiles
constexpr int64_t kMostIntegerRows = 8;
// With up to this many rows the next block is fetched beside products.  With more rows weights are
// a small part of the time, and their lines would push panels out of the cache.
constexpr int64_t kMostRowsFetching = 64;

// Fetches a step's bytes ahead of where they are read, row by row of its tiles.  Why a few lines at
// a time: a burst of fetches takes all line fill buffers, for which loads then wait.
template <int64_t kBytes>
class StepFetch {
 public:
  StepFetch(const std::byte* step, const TileGemm& g)
      : to_l1_(step + (g.fetch_by_pages ? kNear : g.fetch_ahead)),
        to_l2_(g.fetch_by_pages ? PagesAhead::turn(step, g) : nullptr) {}

  [[gnu::always_inline]] void beside_row(int64_t row) const {
    constexpr int64_t kLines = kBytes / kTileRowBytes;
    for (int64_t line = row * kLines / kTileRows; line < (row + 1) * kLines / kTileRows; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(to_l1_ + line * kTileRowBytes), _MM_HINT_T0);
      if (to_l2_ != nullptr) {
        _mm_prefetch(reinterpret_cast<const char*>(to_l2_ + PagesAhead::place(line)), _MM_HINT_T1);
      }
    }
  }

 private:
  static constexpr int64_t kNear = 1024;

  const std::byte* to_l1_;
  const std::byte* to_l2_;
};

// Fetches the next block's units, some in each step.  Why nothing else is fetched: a function call
// in the loop over steps would cost the loop its registers.
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

// Some rows of a panel that all lie in one tile.
struct Rows {
  const std::byte* a;  // of the part's first step
  float* c;
  const float* scales;  // [rows][groups], or null: 1
};

// Four bytes of a row in all lanes.
inline __m512i broadcast(const std::byte* a, size_t row, int64_t pair) {
  int value;
  __builtin_memcpy(&value, a + row * kTileRowBytes + pair * 4, 4);
  return _mm512_set1_epi32(value);
}

// Calls body(0), body(1) and so on, with constants.  Why not a loop: where the compiler unrolls it
// late, it leaves what the body indexes in memory.
template <size_t kCount, typename Body>
[[gnu::always_inline]] inline void unroll(Body body) {
  [&]<size_t... i>(std::integer_sequence<size_t, i...>) __attribute__((always_inline)) {
    (body(std::integral_constant<size_t, i>()), ...);
  }
  (std::make_integer_sequence<size_t, kCount>());
}

// Calls body.operator()<rows>() for a number of rows up to kMost.
template <size_t kMost, typename Body>
void with_rows(int64_t rows, Body body) {
  if constexpr (kMost > 0) {
    rows == static_cast<int64_t>(kMost) ? body.template operator()<kMost>()
                                        : with_rows<kMost - 1>(rows, body);
  }
}

// Calls body(rows, their number, whether they are the first) for groups of at most `most` rows.
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

// The number of those groups.
int64_t num_passes(const TileGemm& g, int64_t most) {
  return g.rows / kTileRows * ceil_div(kTileRows, most) + ceil_div(g.rows % kTileRows, most);
}

// num_passes: how many passes over the rows fetch.
NextBlock next_block(const TileGemm& g, int64_t num_passes) {
  const auto bytes = static_cast<int64_t>(g.next[0].size());
  if (g.rows > kMostRowsFetching || num_passes < 2) {
    return {};
  }
  const int64_t lines = ceil_div(bytes, num_passes * g.steps * kTileRowBytes);
  return {g.next[0].data(), lines * kTileRowBytes};
}

// Calls body(part) for all of k.  k is cut alike for any number of rows, so that the bits of a row
// do not depend on how many there are.
template <typename Body>
void for_each_part(const TileGemm& g, Body body) {
  for (int64_t first = 0; first < g.steps; first += kMostSteps) {
    body(Part{first, std::min(kMostSteps, g.steps - first)});
  }
}

// Sets C, or adds to it, rows of int8 times tiles.  dpbusd takes activations as unsigned, so they
// are raised by 128, which adds 128 times the sum of the weights to each sum.  These offsets are
// subtracted; with kCounts they have yet to be summed.
template <size_t kRows, bool kCounts>
void multiply_integers(const Part& part,
                       const Rows& rows,
                       const std::byte* b,
                       const TileGemm& g,
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
    if (!kCounts) {
      next.advance();
    }
    const StepFetch<kStepBytes> fetch(b, g);
    for (int64_t row = 0; row < kTileRows; ++row) {
      if (kCounts) {
        fetch.beside_row(row);
      }
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
        is_first ? multiply_integers<kRows, true>(part, rows, b, g, offsets, next)
                 : multiply_integers<kRows, false>(part, rows, b, g, offsets, next);
      });
    });
  });
}

}  // namespace
}  // namespace avx512

}  // namespace moebius::cpu
