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

#include <type_traits>

#include "experts/cpu/tiles/vector_decoders.h"
#include "experts/cpu/tiles/vector_rows.h"

namespace moebius::cpu {

namespace {

// The most rows that are multiplied as weights of a code are decoded.  What takes few instructions
// is decoded again for other rows.
inline int64_t most_few_rows(TileCode code) {
  const bool is_cheap = code == TileCode::kBF16 || code == TileCode::kI8;
  return is_cheap && kMostFewRows > kMostRows ? 2 * kMostFewRows : kMostFewRows;
}

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

// This says where the lines of a part are fetched from, `ahead` of what is read.
struct Fetch {
  const std::byte* end;    // of its half of the block
  const std::byte* after;  // where the next block begins to be read in this place
  int64_t ahead;

  const std::byte* from(const std::byte* at) const {
    at += ahead;
    return at >= end ? after + (at - end) : at;
  }
};

// Returns where the codes begin that are read after a block.
inline const std::byte* codes_after(const TileGemm& g) {
  const std::byte* end = g.units + g.steps * unit_bytes(g.code);
  return end == g.codes_end ? g.codes_after : end;
}

// A part of k in one place, and its sums.
template <typename Decoder, int kRows>
struct FewRowsPart {
  using Panels = typename PanelsOf<Decoder::kCode>::Type;
  using Vector = typename Panels::Vector;

  void start(const TileGemm& g, const Part& of, int64_t first_row, Panels& panels, int place) {
    part = of;
    decoder.start_part(g, part.group);
    units = g.units + part.first * unit_bytes(Decoder::kCode);
    for (int r = 0; r < kRows; ++r) {
      set_row(rows, r, g, part, first_row + r,
              panels.row(g, part, first_row + r, place * kRows + r));
    }
  }

  Part part;
  Decoder decoder;
  const std::byte* units;
  Rows<typename Panels::Value, size_t{kRows}> rows;
  Vector sums[static_cast<size_t>(kRows)][static_cast<size_t>(kVectors)];
};

// Vectors of columns that share values of activations.  At least four sums are added to by turns,
// since multiply-adds wait for themselves, and there are registers for up to eight, or for twelve
// of two vectors.
template <int kRows>
constexpr int kVectorsBeside = kRows* kVectors <= kRegisters / 2 ? kVectors : kChunks;

// Adds a line of kDepth values of k to the sums of kBeside vectors of columns, from `first` on.
template <typename Decoder, int kRows, int kBeside, typename Vector>
inline void sum_line(const FewRowsPart<Decoder, kRows>& part,
                     int64_t s,
                     int64_t line,
                     int first,
                     Vector (&sums)[static_cast<size_t>(kRows)][static_cast<size_t>(kBeside)]) {
  using Panels = typename PanelsOf<Decoder::kCode>::Type;
  using Ready = typename Decoder::Ready;
  constexpr int kDepth = Decoder::kDepth;
  constexpr int64_t kTileBytesOfCode = unit_bytes(Decoder::kCode) / 2;
  const std::byte* unit = part.units + s * unit_bytes(Decoder::kCode) + line * kTileRowBytes;
  // Why opaque: constants are loaded for a line, or the compiler keeps them in registers that the
  // sums need.
  const Decoder* decoder = opaque(&part.decoder);
  const typename Panels::Value* a[static_cast<size_t>(kRows)];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    a[r] = part.rows.a[r] + Panels::offset(s, line * kDepth);
  }
  Ready ready[static_cast<size_t>(kBeside)];
#pragma GCC unroll 8
  for (int b = 0; b < kBeside; ++b) {
    const int v = first + b;
    decoder->prepare(unit + v / kChunks * kTileBytesOfCode + v % kChunks * kLanes * 4, line, v,
                     ready[b]);
  }
  // Beside eight sums there are no registers for what is ready of four vectors.
  if constexpr (!std::is_pointer_v<Ready> && kRegisters == 16 && kRows > 1 && kBeside > kChunks) {
    asm("" : "+m"(ready));
  }
#pragma GCC unroll 8
  for (int i = 0; i < kDepth; ++i) {
    const auto value_of = [&](int r) { return spread(a[r][i * Panels::kValueStride]); };
    const auto weight_of = [&](int b) { return decoder->value(ready[b], i, line, first + b); };
    if constexpr (kRows > kBeside) {
      Vector weights[static_cast<size_t>(kBeside)];
#pragma GCC unroll 8
      for (int b = 0; b < kBeside; ++b) {
        weights[b] = weight_of(b);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vector value = value_of(r);
#pragma GCC unroll 8
        for (int b = 0; b < kBeside; ++b) {
          sums[r][b] = multiply_add(value, weights[b], sums[r][b]);
        }
      }
    } else {
      Vector values[static_cast<size_t>(kRows)];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        values[r] = value_of(r);
      }
#pragma GCC unroll 8
      for (int b = 0; b < kBeside; ++b) {
        const Vector weight = weight_of(b);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          sums[r][b] = multiply_add(values[r], weight, sums[r][b]);
        }
      }
    }
  }
}

// Whether the scales of steps are left to the sums.
template <typename Decoder>
constexpr bool kScalesSums = std::is_same_v<Decoder, Mxfp4CodeDecoder>;

// Multiplies the sums of rows with factor(b) of vector b.
template <size_t kRows, size_t kBeside, typename Factor>
inline void multiply_sums(Floats (&sums)[kRows][kBeside], Factor factor) {
#pragma GCC unroll 8
  for (size_t b = 0; b < kBeside; ++b) {
    const Floats of_vector = factor(static_cast<int>(b));
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      sums[r][b] *= of_vector;
    }
  }
}

// Sums parts of equal length in kPlaces places.
template <typename Decoder, int kRows, int kPlaces>
inline void sum_parts(const TileGemm& g,
                      FewRowsPart<Decoder, kRows> (&parts)[static_cast<size_t>(kPlaces)],
                      const Fetch* fetch) {
  using Panels = typename PanelsOf<Decoder::kCode>::Type;
  using Vector = typename Panels::Vector;
  constexpr int kBeside = kVectorsBeside<kRows>;
  constexpr int64_t kLines = unit_bytes(Decoder::kCode) / 2 / kTileRowBytes;
  for (int first = 0; first < kVectors; first += kBeside) {
    // A copy, since sums in memory would be stored at each step.
    Vector sums[static_cast<size_t>(kPlaces)][static_cast<size_t>(kRows)]
               [static_cast<size_t>(kBeside)] = {};
    for (int64_t s = 0; s < parts[0].part.steps; ++s) {
      const std::byte* ahead[static_cast<size_t>(kPlaces)];
      for (int p = 0; p < kPlaces; ++p) {
        ahead[p] = fetch[p].from(parts[p].units + s * unit_bytes(Decoder::kCode));
        parts[p].decoder.start_step(g, parts[p].part.first + s);
        if constexpr (kScalesSums<Decoder>) {
          if (s > 0) {
            multiply_sums(sums[p], [&](int b) {
              return factor_to_next(g, parts[p].part.first + s - 1, first + b);
            });
          }
        }
        if constexpr (Panels::kHasScales) {
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            __builtin_prefetch(parts[p].rows.a[r] + Panels::offset(s + 1, 0));
            __builtin_prefetch(parts[p].rows.a[r] + Panels::offset(s + 1, 16));
          }
        }
      }
      for (int64_t line = 0; line < kLines; ++line) {
#pragma GCC unroll 2
        for (int p = 0; p < kPlaces; ++p) {
          if (first == 0) {
            __builtin_prefetch(ahead[p] + 2 * line * kTileRowBytes);
            __builtin_prefetch(ahead[p] + (2 * line + 1) * kTileRowBytes);
          }
          sum_line<Decoder, kRows, kBeside>(parts[p], s, line, first, sums[p]);
        }
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < kPlaces; ++p) {
      if constexpr (kScalesSums<Decoder>) {
        const int64_t last = parts[p].part.first + parts[p].part.steps - 1;
        multiply_sums(sums[p], [&](int b) { return scale_of_sums(g, last, first + b); });
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int b = 0; b < kBeside; ++b) {
          parts[p].sums[r][first + b] = sums[p][r][b];
        }
      }
    }
  }
}

// Adds a part of k to C of rows [first_row, first_row + kRows).
template <typename Decoder, int kRows, typename Panels>
inline void add_part_of_rows(const TileGemm& g,
                             const Part& part,
                             int64_t first_row,
                             const Fetch& fetch,
                             const float* column_scales,
                             Panels& panels) {
  FewRowsPart<Decoder, kRows> parts[1];
  parts[0].start(g, part, first_row, panels, 0);
  sum_parts<Decoder, kRows, 1>(g, parts, &fetch);
  for (int r = 0; r < kRows; ++r) {
    add_to_c<Panels>(parts[0].rows, r, parts[0].sums[r], column_scales);
  }
}

template <typename Decoder, int kRows, typename Panels>
inline void add_part_of_some(const TileGemm& g,
                             const Part& part,
                             int64_t first_row,
                             int64_t count,
                             const Fetch& fetch,
                             const float* column_scales,
                             Panels& panels) {
  if constexpr (kRows > 0) {
    count == kRows
        ? add_part_of_rows<Decoder, kRows>(g, part, first_row, fetch, column_scales, panels)
        : add_part_of_some<Decoder, kRows - 1>(g, part, first_row, count, fetch, column_scales,
                                               panels);
  }
}

// Adds parts of k to C, from step `first` to `end`, one after the other.  Of a part that is
// multiplied by more rows than there are registers for, the codes are in L1 the next time.
template <typename Decoder>
inline void add_in_order(const TileGemm& g, int64_t first, int64_t end) {
  using Panels = typename PanelsOf<Decoder::kCode>::Type;
  Panels panels;
  GroupScales scales;
  const Fetch fetch = {g.units + g.steps * unit_bytes(Decoder::kCode), codes_after(g),
                       g.fetch_ahead};
  const int64_t passes = (g.rows + kMostFewRows - 1) / kMostFewRows;
  for (Part part = part_at(g, first); part.first < end;
       part = part_at(g, part.first + part.steps)) {
    const float* column_scales = scales.of(g, part);
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int64_t first_row = pass * g.rows / passes;
      const int64_t count = (pass + 1) * g.rows / passes - first_row;
      add_part_of_some<Decoder, kMostFewRows>(g, part, first_row, count, fetch, column_scales,
                                              panels);
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
    return add_in_order<Decoder>(g, 0, g.steps);
  }
  Panels panels;
  GroupScales scales;
  FewRowsPart<Decoder, 1> parts[2];
  Vector waiting[static_cast<size_t>(kMostWaiting)][static_cast<size_t>(kVectors)];
  const int64_t half_bytes = half * part_steps * unit_bytes(Decoder::kCode);
  const std::byte* after = codes_after(g);
  const Fetch fetch[2] = {{g.units + half_bytes, after, g.fetch_ahead},
                          {g.units + 2 * half_bytes, after + half_bytes, g.fetch_ahead}};
  for (int64_t i = 0; i < half; ++i) {
    for (int p = 0; p < 2; ++p) {
      parts[p].start(g, part_at(g, (p * half + i) * part_steps), 0, panels, p);
    }
    sum_parts<Decoder, 1, 2>(g, parts, fetch);
    add_to_c<Panels>(parts[0].rows, 0, parts[0].sums[0], scales.of(g, parts[0].part));
    for (int v = 0; v < kVectors; ++v) {
      waiting[i][v] = parts[1].sums[0][v];
    }
  }
  for (int64_t i = 0; i < half; ++i) {
    const Part part = part_at(g, (half + i) * part_steps);
    Rows<typename Panels::Value, 1> rows;
    set_row<typename Panels::Value>(rows, 0, g, part, 0, nullptr);
    add_to_c<Panels>(rows, 0, waiting[i], scales.of(g, part));
  }
  add_in_order<Decoder>(g, 2 * half * part_steps, g.steps);
}

template <typename Decoder>
inline void multiply_few(const TileGemm& g) {
  for (int64_t r = 0; r < g.rows; ++r) {
    for (int64_t half = 0; half < 2; ++half) {
      std::memset(g.c + half * kTileFloats + r * 16, 0, 64);
    }
  }
  g.rows == 1 && kMostFewRows > 1 ? add_halves<Decoder>(g) : add_in_order<Decoder>(g, 0, g.steps);
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
    case TileCode::kI8AsBF16:
      g.zero_points != nullptr ? multiply_few<Int8AsBF16Decoder<true>>(g)
                               : multiply_few<Int8AsBF16Decoder<false>>(g);
      return true;
    case TileCode::kInt4:
      g.zero_points != nullptr ? multiply_few<Int4Decoder<true>>(g)
                               : multiply_few<Int4Decoder<false>>(g);
      return true;
    case TileCode::kMxfp4:
      can_scale_sums(g) ? multiply_few<Mxfp4CodeDecoder>(g)
                        : multiply_few<E2M1Decoder<TileCode::kMxfp4>>(g);
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
