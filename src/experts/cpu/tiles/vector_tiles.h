// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tile kernels that multiply f32 values, or int8 codes, on any processor.  The loops are written in
// vector types of the compiler; a file that includes this header gives them the instruction set it
// is compiled for.  Everything here is static, so that no other file can end up with those
// instructions.
//
// The weights of a part of k are decoded into L1 once, then all rows are multiplied with them; few
// rows are multiplied as the weights are read (vector_few_rows.h).  A row is summed in the same
// order whatever rows are beside it.
#pragma once

#include <cstring>
#include <string_view>

#ifdef __AVX512VNNI__
#include "experts/cpu/tiles/avx512_rows.h"
#endif
#include "experts/cpu/tiles/tile_epilogue.h"
#include "experts/cpu/tiles/tile_kernels.h"
#include "experts/cpu/tiles/vector_codes.h"
#include "experts/cpu/tiles/vector_few_rows.h"
#include "experts/cpu/tiles/vector_rows.h"

namespace moebius::cpu {

namespace {

// With up to this many rows, bf16 weights are widened again for the next rows: that costs less than
// storing them.
constexpr int64_t kMostStoredRows = 4 * kMostRows;

// Reads weights as decode_part() leaves them.
template <typename Vector>
struct DecodedWeights {
  const float* at;

  Vector load(int64_t line, int64_t k, int v) const {
    return cpu::load<Vector>(at + line / 2 * kDecodedStep + line % 2 * 256 +
                             v / kChunks * kDecodedTile + k * 16 + v % kChunks * kLanes);
  }
};

// Reads bf16 weights as they are stored.
struct StoredBF16 {
  const std::byte* at;

  Floats load(int64_t line, int64_t k, int v) const {
    const std::byte* row = at + line / 2 * kStepBytes + v / kChunks * kTileBytes +
                           (line % 2 * 8 + k / 2) * kTileRowBytes;
    if (k % 2 == 0 && v % kChunks == 0) {
      __builtin_prefetch(row + kPartAhead);
    }
    const auto pair = cpu::load<Words>(row + v % kChunks * kLanes * 4);
    return as_floats(k % 2 == 0 ? pair << 16 : pair & 0xffff0000);
  }
};

template <typename Panels>
using RowsAtOnce = Rows<typename Panels::Value, size_t{kMostRows}>;

// Adds A * B * scales to C.  column_scales: [32], or null: 1; integers have none.
template <int kRows, typename Panels, typename Weights>
inline void add_part(const RowsAtOnce<Panels>& rows,
                     const Weights& weights,
                     int64_t steps,
                     const float* column_scales) {
  using Vector = typename Panels::Vector;
  Vector sums[static_cast<size_t>(kRows)][size_t{kVectors}] = {};
  for (int64_t line = 0; line < 2 * steps; ++line) {
    for (int64_t pair = 0; pair < 16; pair += 2) {
#pragma GCC unroll 2
      for (int64_t k = pair; k < pair + 2; ++k) {
        Vector values[static_cast<size_t>(kRows)];
        for (int r = 0; r < kRows; ++r) {
          values[r] = spread(rows.a[r][line * Panels::kLineStride + k]);
        }
        for (int v = 0; v < kVectors; ++v) {
          const Vector weight = weights.load(line, k, v);
          for (int r = 0; r < kRows; ++r) {
            sums[r][v] = multiply_add(values[r], weight, sums[r][v]);
          }
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    add_to_c<Panels>(rows, r, sums[r], column_scales);
  }
}

template <int kRows, typename Panels, typename Weights>
inline void add_some(const RowsAtOnce<Panels>& rows,
                     int count,
                     const Weights& weights,
                     int64_t steps,
                     const float* column_scales) {
  if constexpr (kRows > 0) {
    count == kRows ? add_part<kRows, Panels>(rows, weights, steps, column_scales)
                   : add_some<kRows - 1, Panels>(rows, count, weights, steps, column_scales);
  }
}

// Adds a part of k to C of all rows, as many rows at a time as there are registers for.
template <typename Panels, typename Weights>
inline void multiply_part(const TileGemm& g,
                          const Part& part,
                          const Weights& weights,
                          const float* column_scales,
                          Panels& panels) {
  for (int64_t first = 0; first < g.rows;) {
    const int64_t left = g.rows - first;
    const int64_t passes = (left + kMostRows - 1) / kMostRows;
    const auto count = static_cast<int>((left + passes - 1) / passes);
    RowsAtOnce<Panels> rows{};
    for (int i = 0; i < count; ++i) {
      set_row(rows, i, g, part, first + i, panels.row(g, part, first + i, i));
    }
    add_some<kMostRows, Panels>(rows, count, weights, part.steps, column_scales);
    first += count;
  }
}

template <typename Panels>
inline void multiply_many(const TileGemm& g) {
  using Vector = typename Panels::Vector;
  alignas(64) float room[kPartSteps * kDecodedStep];
  GroupScales scales;
  Panels panels;
  const int64_t num_panels = (g.rows + kPanelRows - 1) / kPanelRows;
  std::memset(g.c, 0, static_cast<size_t>(num_panels * kPanelFloats) * sizeof(float));
  for (Part part = part_at(g, 0); part.steps > 0; part = part_at(g, part.first + part.steps)) {
    if constexpr (Panels::kHasScales) {
      if (g.code == TileCode::kBF16 && g.rows <= kMostStoredRows) {
        const StoredBF16 stored = {g.units + part.first * kStepBytes};
        multiply_part(g, part, stored, nullptr, panels);
        continue;
      }
    }
    const DecodedWeights<Vector> decoded = {decode_part(g, part, room)};
    multiply_part(g, part, decoded, scales.of(g, part), panels);
  }
}

inline void multiply_integers(const TileGemm& g) {
#ifdef __AVX512VNNI__
  avx512::multiply_integers(g);
#else
  g.rows <= most_few_rows(g.code) ? multiply_few<Int8Decoder>(g) : multiply_many<IntPanels>(g);
#endif
}

void multiply(const TileGemm& g, const TileEpilogue& e, TileRest&) {
  if (g.code == TileCode::kI8) {
    multiply_integers(g);
  } else if (g.rows > most_few_rows(g.code) || !multiply_few_floats(g)) {
    multiply_many<FloatPanels>(g);
  }
  finish_rows(e, g.c, 0, g.rows);
}

void finish(TileRest&) {}

}  // namespace

}  // namespace moebius::cpu
