// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// AVX-512 BF16, for processors without AMX: a row of a weight tile is one register of 16 columns by
// two k, multiplied with a pair of the activation row's values in all lanes.
#include <algorithm>

#include "experts/cpu/tiles/avx512_epilogue.h"
#include "experts/cpu/tiles/avx512_tiles.h"

namespace moebius::cpu {

namespace {

constexpr int64_t kStepsDecoded = 16;
constexpr int64_t kMostRows = 4;  // at a time: 16 sums in registers
// The hardware's own prefetching stops at each page: T = 1 in fp8 3.33 to 3.17 ms, int4 2.13
// to 1.92. Past the end of the weights, too; a prefetch may.
constexpr int64_t kPrefetchAhead = 4096;

// c[r] (+)= rows [0, kRows) of a tile times `steps` units.  a and c point at the first of the rows.
// Even and odd pairs of k are summed apart: one chain of a few rows would wait for itself.
template <size_t kRows>
void multiply_rows(const std::byte* a, const std::byte* b, float* c, int64_t steps, bool adds) {
  __m512 sum[2][kRows][2];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t half = 0; half < 2; ++half) {
      sum[0][r][half] = adds ? load16(c + half * kTileFloats + r * 16) : _mm512_setzero_ps();
      sum[1][r][half] = _mm512_setzero_ps();
    }
  }
  for (int64_t s = 0; s < steps; ++s, a += kStepBytes, b += kStepBytes) {
#pragma GCC unroll 16  // which chain is known
    for (int64_t row = 0; row < kTileRows; ++row) {
      const auto left = (__m512bh)_mm512_loadu_si512(b + row * kTileRowBytes);
      const auto right = (__m512bh)_mm512_loadu_si512(b + kTileBytes + row * kTileRowBytes);
      auto& chain = sum[row % 2];
      for (size_t r = 0; r < kRows; ++r) {
        int pair;
        __builtin_memcpy(&pair, a + r * kTileRowBytes + row * 4, 4);
        const auto all = (__m512bh)_mm512_set1_epi32(pair);
        chain[r][0] = _mm512_dpbf16_ps(chain[r][0], all, left);
        chain[r][1] = _mm512_dpbf16_ps(chain[r][1], all, right);
      }
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t half = 0; half < 2; ++half) {
      _mm512_storeu_ps(c + half * kTileFloats + r * 16,
                       _mm512_add_ps(sum[0][r][half], sum[1][r][half]));
    }
  }
}

void multiply_panel(
    const std::byte* a, const std::byte* b, float* c, int64_t rows, int64_t steps, bool adds) {
  for (int64_t r = 0; r < rows;) {
    const int64_t in_tile = r % kTileRows;
    const std::byte* from = a + r / kTileRows * kTileBytes + in_tile * kTileRowBytes;
    float* to = c + r / kTileRows * 2 * kTileFloats + in_tile * 16;
    const int64_t left = std::min(rows - r, kTileRows - in_tile);
    if (left >= kMostRows) {
      multiply_rows<kMostRows>(from, b, to, steps, adds);
      r += kMostRows;
    } else {
      multiply_rows<1>(from, b, to, steps, adds);
      r += 1;
    }
  }
}

void multiply(const TileGemm& g, const TileEpilogue& e, TileRest&) {
  alignas(64) std::byte tiles[kStepsDecoded * kStepBytes];
  alignas(64) float product[kPanelFloats];
  const bool is_coded = g.code != TileCode::kBF16;
  const int64_t num_panels = (g.rows + kPanelRows - 1) / kPanelRows;
  for (int64_t first = 0; first < g.steps;) {
    const int64_t group = g.group_steps > 0 ? first / g.group_steps : 0;
    const int64_t end =
        g.group_steps > 0 ? std::min((group + 1) * g.group_steps, g.steps) : g.steps;
    const int64_t steps = std::min(kStepsDecoded, end - first);
    const std::byte* b = g.units + first * kStepBytes;
    if (is_coded) {
      decode_units<kPrefetchAhead>(g, group, first, steps, tiles);
      b = tiles;
    }
    for (int64_t p = 0; p < num_panels; ++p) {
      const int64_t rows = std::min(kPanelRows, g.rows - p * kPanelRows);
      const std::byte* a = g.a + (p * g.steps + first) * kStepBytes;
      float* c = g.c + p * kPanelFloats;
      if (g.group_steps > 0) {
        multiply_panel(a, b, product, rows, steps, false);
        add_scaled(g, group, p * kPanelRows, rows, product, c, first > 0);
      } else {
        multiply_panel(a, b, c, rows, steps, first > 0);
      }
    }
    first += steps;
  }
  finish_rows(e, g.c, 0, g.rows);
  finish_stores(e);
}

void finish(TileRest&) {}

}  // namespace

const TileKernels& avx512_tiles() {
  static const TileKernels kernels = {"avx512", false, multiply, finish};
  return kernels;
}

}  // namespace moebius::cpu
