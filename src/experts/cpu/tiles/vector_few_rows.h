// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Products of few rows, which take as long as their weights take to be read.  Weights are decoded
// in registers, and each value is multiplied at once.
//
// A core reads memory faster in two places than in one: the hardware's own prefetching works page
// by page.  So with one row the first and the second half of k are read side by side, which also
// gives each multiply-add twice as many others to be done beside it.  The sums of the second half's
// parts wait until those of the first half are in C, so that C is summed in the order of k.
#pragma once

#include "experts/cpu/tiles/vector_decoders.h"
#include "experts/cpu/tiles/vector_rows.h"

namespace moebius::cpu {

namespace {

// How many parts of the second half of k wait at a time.
constexpr int64_t kMostWaiting = 64;

template <TileCode kCode>
struct PanelsOf {
  using Type = FloatPanels;
};
template <>
struct PanelsOf<TileCode::kI8> {
  using Type = IntPanels;
};

// Where the lines of a part are fetched from, while they are `ahead` of what is read.  Beyond the
// end of its half of the block, this is where the next block begins to be read in this place.
struct Fetch {
  const std::byte* end;  // of the half
  int64_t skipped;       // bytes of the other half
  int64_t ahead;

  const std::byte* from(const std::byte* at) const {
    at += ahead;
    return at >= end ? at + skipped : at;
  }
};

// A part of k in one place, and its sums.
template <typename Decoder, int kRows>
struct FewRowsPart {
  using Panels = typename PanelsOf<Decoder::kCode>::Type;
  using Vector = typename Panels::Vector;

  void start(const TileGemm& g, const Part& of, Panels& panels, int place) {
    part = of;
    decoder.start_part(g, part.group);
    units = g.units + part.first * unit_bytes(Decoder::kCode);
    for (int r = 0; r < kRows; ++r) {
      set_row(rows, r, g, part, r, panels.row(g, part, r, place * kRows + r));
      for (Vector& sum : sums[r]) {
        sum = Vector{};
      }
    }
  }

  Part part;
  Decoder decoder;
  const std::byte* units;
  Rows<typename Panels::Value> rows;
  Vector sums[static_cast<size_t>(kRows)][static_cast<size_t>(kVectors)];
};

// Sums parts of equal length in kPlaces places.
template <typename Decoder, int kRows, int kPlaces>
inline void sum_parts(const TileGemm& g,
                      FewRowsPart<Decoder, kRows> (&parts)[static_cast<size_t>(kPlaces)],
                      const Fetch* fetch) {
  using Panels = typename PanelsOf<Decoder::kCode>::Type;
  using Vector = typename Panels::Vector;
  constexpr int kDepth = Decoder::kDepth;
  // Vectors of columns that share values of activations, where there are registers for them.
  constexpr int kBeside = kRows < kMostRows ? kChunks : 1;
  constexpr int64_t kTileBytesOfCode = unit_bytes(Decoder::kCode) / 2;
  constexpr int64_t kLines = kTileBytesOfCode / kTileRowBytes;
  // A copy, since sums in memory would be stored at each step.
  Vector sums[static_cast<size_t>(kPlaces)][static_cast<size_t>(kRows)]
             [static_cast<size_t>(kVectors)] = {};
  for (int64_t s = 0; s < parts[0].part.steps; ++s) {
    const std::byte* units[static_cast<size_t>(kPlaces)];
    const std::byte* ahead[static_cast<size_t>(kPlaces)];
    for (int p = 0; p < kPlaces; ++p) {
      units[p] = parts[p].units + s * unit_bytes(Decoder::kCode);
      ahead[p] = fetch[p].from(units[p]);
      parts[p].decoder.start_step(g, parts[p].part.first + s);
    }
    for (int64_t line = 0; line < kLines; ++line) {
#pragma GCC unroll 2
      for (int p = 0; p < kPlaces; ++p) {
        __builtin_prefetch(ahead[p] + 2 * line * kTileRowBytes);
        __builtin_prefetch(ahead[p] + (2 * line + 1) * kTileRowBytes);
        const typename Panels::Value* a[static_cast<size_t>(kRows)];
        for (int r = 0; r < kRows; ++r) {
          a[r] = parts[p].rows.a[r] + Panels::offset(s, line * kDepth);
        }
#pragma GCC unroll 8
        for (int first = 0; first < kVectors; first += kBeside) {
          using Values = decltype(parts[p].decoder.load(units[p], line, first));
          Values values[static_cast<size_t>(kBeside)];
          for (int b = 0; b < kBeside; ++b) {
            const int v = first + b;
            values[b] = parts[p].decoder.load(units[p] + v / kChunks * kTileBytesOfCode +
                                                  line * kTileRowBytes + v % kChunks * kLanes * 4,
                                              line, v);
          }
#pragma GCC unroll 8
          for (int i = 0; i < kDepth; ++i) {
            Vector spread_values[static_cast<size_t>(kRows)];
            for (int r = 0; r < kRows; ++r) {
              spread_values[r] = spread(a[r][i * Panels::kValueStride]);
            }
            for (int b = 0; b < kBeside; ++b) {
              const Vector weight = values[b].at(i);
              for (int r = 0; r < kRows; ++r) {
                Vector& sum = sums[p][r][first + b];
                sum = multiply_add(spread_values[r], weight, sum);
              }
            }
          }
        }
      }
    }
  }
  for (int p = 0; p < kPlaces; ++p) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        parts[p].sums[r][v] = sums[p][r][v];
      }
    }
  }
}

// Adds parts of k to C, from step `first` to `end`, one after the other.
template <typename Decoder, int kRows>
inline void add_in_order(const TileGemm& g, int64_t first, int64_t end) {
  using Panels = typename PanelsOf<Decoder::kCode>::Type;
  Panels panels;
  GroupScales scales;
  FewRowsPart<Decoder, kRows> parts[1];
  const Fetch fetch = {g.units + g.steps * unit_bytes(Decoder::kCode), 0, g.fetch_ahead};
  for (Part part = part_at(g, first); part.first < end;
       part = part_at(g, part.first + part.steps)) {
    parts[0].start(g, part, panels, 0);
    sum_parts<Decoder, kRows, 1>(g, parts, &fetch);
    for (int r = 0; r < kRows; ++r) {
      add_to_c<Panels>(parts[0].rows, r, parts[0].sums[r], scales.of(g, part));
    }
  }
}

// Adds all of k to C of one row, both halves side by side.
template <typename Decoder>
inline void add_halves(const TileGemm& g) {
  using Panels = typename PanelsOf<Decoder::kCode>::Type;
  using Vector = typename Panels::Vector;
  const int64_t part_steps = part_at(g, 0).steps;
  // Parts are equal, except where groups are not whole parts, or at the end of k.
  const bool are_equal = g.group_steps == 0 || g.group_steps % part_steps == 0;
  const int64_t half = g.steps / part_steps / 2;  // parts
  if (!are_equal || half == 0 || half > kMostWaiting) {
    return add_in_order<Decoder, 1>(g, 0, g.steps);
  }
  Panels panels;
  GroupScales scales;
  FewRowsPart<Decoder, 1> parts[2];
  Vector waiting[static_cast<size_t>(kMostWaiting)][static_cast<size_t>(kVectors)];
  const int64_t half_bytes = half * part_steps * unit_bytes(Decoder::kCode);
  const int64_t rest_bytes = g.steps * unit_bytes(Decoder::kCode) - half_bytes;
  const Fetch fetch[2] = {{g.units + half_bytes, rest_bytes, g.fetch_ahead},
                          {g.units + 2 * half_bytes, rest_bytes, g.fetch_ahead}};
  for (int64_t i = 0; i < half; ++i) {
    for (int p = 0; p < 2; ++p) {
      parts[p].start(g, part_at(g, (p * half + i) * part_steps), panels, p);
    }
    sum_parts<Decoder, 1, 2>(g, parts, fetch);
    add_to_c<Panels>(parts[0].rows, 0, parts[0].sums[0], scales.of(g, parts[0].part));
    for (int v = 0; v < kVectors; ++v) {
      waiting[i][v] = parts[1].sums[0][v];
    }
  }
  for (int64_t i = 0; i < half; ++i) {
    const Part part = part_at(g, (half + i) * part_steps);
    Rows<typename Panels::Value> rows;
    set_row<typename Panels::Value>(rows, 0, g, part, 0, nullptr);
    add_to_c<Panels>(rows, 0, waiting[i], scales.of(g, part));
  }
  add_in_order<Decoder, 1>(g, 2 * half * part_steps, g.steps);
}

template <typename Decoder, int kRows = kMostRows>
inline void multiply_few(const TileGemm& g) {
  if constexpr (kRows > 0) {
    if (g.rows < kRows) {
      return multiply_few<Decoder, kRows - 1>(g);
    }
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t half = 0; half < 2; ++half) {
        std::memset(g.c + half * kTileFloats + r * 16, 0, 64);
      }
    }
    if constexpr (kRows == 1 && kMostRows > 1) {
      add_halves<Decoder>(g);
    } else {
      add_in_order<Decoder, kRows>(g, 0, g.steps);
    }
  }
}

// Multiplies a block of f32 products, or returns false where its code has no decoder.
inline bool multiply_few_floats(const TileGemm& g) {
  switch (g.code) {
    case TileCode::kBF16:
      multiply_few<BF16Decoder>(g);
      return true;
    case TileCode::kF16:
      multiply_few<F16Decoder>(g);
      return true;
    case TileCode::kF8E4M3:
      multiply_few<E4M3Decoder>(g);
      return true;
    case TileCode::kInt4:
      g.zero_points != nullptr ? multiply_few<Int4Decoder<true>>(g)
                               : multiply_few<Int4Decoder<false>>(g);
      return true;
    case TileCode::kMxfp4:
      multiply_few<E2M1Decoder<TileCode::kMxfp4>>(g);
      return true;
    case TileCode::kNvfp4:
      multiply_few<E2M1Decoder<TileCode::kNvfp4>>(g);
      return true;
    default:
      return false;
  }
}

}  // namespace

}  // namespace moebius::cpu
