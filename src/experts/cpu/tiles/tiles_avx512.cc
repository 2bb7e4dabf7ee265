// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// AVX-512 BF16 and VNNI, for processors without AMX: a row of a weight tile is one register of 16
// columns by two (of int8 four) k, multiplied with as many values of an activation row in all
// lanes.
//
// A step's codes of few rows are multiplied as they are decoded, in registers; for more rows a part
// of k is decoded into L1 first.  Either way a row is summed alike, whatever rows are beside it.
#include <algorithm>

#include "core/ceil_div.h"
#include "experts/cpu/tiles/avx512_codes.h"
#include "experts/cpu/tiles/avx512_epilogue.h"
#include "experts/cpu/tiles/avx512_tiles.h"

namespace moebius::cpu {

namespace {

constexpr int64_t kMostSteps = 16;  // of a part of k: 32 KiB of tiles
constexpr int64_t kMostRows = 4;    // at a time: 16 sums in registers, and 8 scaled ones
constexpr int64_t kMostIntegerRows = 8;
// Up to here codes are decoded again for the next rows: 8 rows of int4 42 ns a step, by way of
// L1 53.
constexpr int64_t kMostFusedRows = 8;
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

// Sums of some rows.  Even and odd tile rows apart: one chain of few rows would wait for itself.
template <size_t kRows>
class Sums {
 public:
  // a: of this step.
  void add(int row, __m512i left, __m512i right, const std::byte* a) {
    for (size_t r = 0; r < kRows; ++r) {
      const auto all = (__m512bh)broadcast(a, r, row);
      __m512(&chains)[2] = chains_[row % 2][r];
      chains[0] = _mm512_dpbf16_ps(chains[0], all, (__m512bh)left);
      chains[1] = _mm512_dpbf16_ps(chains[1], all, (__m512bh)right);
    }
  }

  // What was added since the last time has these scales, and of its row.
  void scale(__m512 left, __m512 right) {
    for (size_t r = 0; r < kRows; ++r) {
      scaled_[r][0] = _mm512_fmadd_ps(unscaled(r, 0), left, scaled_[r][0]);
      scaled_[r][1] = _mm512_fmadd_ps(unscaled(r, 1), right, scaled_[r][1]);
    }
    clear();
  }
  void scale(__m512 left, __m512 right, const float* row_scales, int64_t stride) {
    for (size_t r = 0; r < kRows; ++r) {
      const __m512 row = _mm512_set1_ps(row_scales[static_cast<int64_t>(r) * stride]);
      scaled_[r][0] = _mm512_fmadd_ps(unscaled(r, 0), _mm512_mul_ps(left, row), scaled_[r][0]);
      scaled_[r][1] = _mm512_fmadd_ps(unscaled(r, 1), _mm512_mul_ps(right, row), scaled_[r][1]);
    }
    clear();
  }

  // kScales: all that is added will be scaled.
  template <bool kScales>
  void start(const float* c, bool adds) {
    clear();
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t half = 0; half < 2; ++half) {
        __m512& sum = kScales ? scaled_[r][half] : chains_[0][r][half];
        sum = adds ? load16(c + half * kTileFloats + r * 16) : _mm512_setzero_ps();
      }
    }
  }
  template <bool kScales>
  void store(float* c) const {
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t half = 0; half < 2; ++half) {
        _mm512_storeu_ps(c + half * kTileFloats + r * 16,
                         kScales ? scaled_[r][half] : unscaled(r, half));
      }
    }
  }

 private:
  void clear() {
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t half = 0; half < 2; ++half) {
        chains_[0][r][half] = chains_[1][r][half] = _mm512_setzero_ps();
      }
    }
  }
  __m512 unscaled(size_t r, size_t half) const {
    return _mm512_add_ps(chains_[0][r][half], chains_[1][r][half]);
  }

  __m512 chains_[2][kRows][2];
  __m512 scaled_[kRows][2];
};

// What has a scale of its own, which its sum is multiplied with.
enum class ScaleOf : uint8_t { kNothing, kGroup, kHalfStep };

// C (+)= a part of k of some rows.  add_step(sums, step within the part, group).
template <size_t kRows, ScaleOf kScaleOf, typename AddStep>
inline __attribute__((always_inline)) void sum_part(const TileGemm& g,
                                                    const Part& part,
                                                    const Rows& rows,
                                                    AddStep add_step) {
  Sums<kRows> sums;
  constexpr bool kScales = kScaleOf != ScaleOf::kNothing;
  sums.template start<kScales>(rows.c, part.first > 0);
  if constexpr (kScaleOf != ScaleOf::kGroup) {
    for (int64_t s = 0; s < part.steps; ++s) {
      add_step(sums, s, 0);
    }
  } else {
    for (int64_t s = 0; s < part.steps;) {
      const int64_t group = (part.first + s) / g.group_steps;
      const int64_t end = std::min((group + 1) * g.group_steps - part.first, part.steps);
      for (; s < end; ++s) {
        add_step(sums, s, group);
      }
      const __m512 left = load_group_scales(g, group, 0);
      const __m512 right = load_group_scales(g, group, 1);
      if (rows.scales != nullptr) {
        sums.scale(left, right, rows.scales + group, g.row_groups);
      } else {
        sums.scale(left, right);
      }
    }
  }
  sums.template store<kScales>(rows.c);
}

// The weights are codes.
template <TileCode kCode, ScaleOf kScaleOf, size_t kRows>
void multiply_codes(const TileGemm& g, const Part& part, const Rows& rows) {
  sum_part<kRows, kScaleOf>(g, part, rows, [&](Sums<kRows>& sums, int64_t s, int64_t group) {
    const int64_t step = part.first + s;
    const std::byte* a = rows.a + s * kStepBytes;
    prefetch_lines(g.units + step * unit_bytes(kCode), unit_bytes(kCode));
    decode_unit<kCode>(
        g, group, step,
        [&](int row, __m512i left, __m512i right) { sums.add(row, left, right, a); },
        [&](__m512 left, __m512 right) { sums.scale(left, right); });
  });
}

// A part of k, decoded.
struct Tiles {
  const std::byte* units;
  const __m512* scales;  // kHalfStep: a pair for each
};

// fetches: these tiles are yet to come into L1.
template <ScaleOf kScaleOf, size_t kRows>
void multiply_tiles(const TileGemm& g,
                    const Part& part,
                    const Rows& rows,
                    const Tiles& tiles,
                    bool fetches,
                    NextBlock& next) {
  sum_part<kRows, kScaleOf>(g, part, rows, [&](Sums<kRows>& sums, int64_t s, int64_t) {
    const std::byte* a = rows.a + s * kStepBytes;
    const std::byte* b = tiles.units + s * kStepBytes;
    if (fetches) {
      prefetch_lines(b, kStepBytes);
    } else {
      next.advance();
    }
#pragma GCC unroll 16  // which chain is known
    for (int row = 0; row < kTileRows; ++row) {
      sums.add(row, _mm512_loadu_si512(b + row * kTileRowBytes),
               _mm512_loadu_si512(b + kTileBytes + row * kTileRowBytes), a);
      if (kScaleOf == ScaleOf::kHalfStep && row % 8 == 7) {
        const __m512* scales = tiles.scales + s * 4 + row / 8 * 2;
        sums.scale(scales[0], scales[1]);
      }
    }
  });
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

template <ScaleOf kScaleOf>
void multiply_decoded(
    const TileGemm& g, const Part& part, const Tiles& tiles, bool fetches, NextBlock& next) {
  for_each_rows(g, part, kMostRows, [&](const Rows& rows, int64_t count, bool is_first) {
    with_rows<kMostRows>(count, [&]<size_t kRows>() {
      multiply_tiles<kScaleOf, kRows>(g, part, rows, tiles, fetches && is_first, next);
    });
  });
}

template <TileCode kCode, ScaleOf kScaleOf>
void multiply_few(const TileGemm& g) {
  for_each_part(g, [&](const Part& part) {
    for_each_rows(g, part, kMostRows, [&](const Rows& rows, int64_t count, bool) {
      with_rows<kMostRows>(
          count, [&]<size_t kRows>() { multiply_codes<kCode, kScaleOf, kRows>(g, part, rows); });
    });
  });
}

template <TileCode kCode, ScaleOf kScaleOf>
void multiply_many(const TileGemm& g) {
  alignas(64) std::byte units[kMostSteps * kStepBytes];
  __m512 scales[kMostSteps * 4];
  NextBlock next = next_block(g, num_passes(g, kMostRows));
  for_each_part(g, [&](const Part& part) {
    __m512* next_scale = scales;
    for (int64_t s = 0; s < part.steps; ++s) {
      const int64_t step = part.first + s;
      auto* out = reinterpret_cast<__m512i*>(units + s * kStepBytes);
      prefetch_lines(g.units + step * unit_bytes(kCode), unit_bytes(kCode));
      decode_unit<kCode>(
          g, g.group_steps > 0 ? step / g.group_steps : 0, step,
          [&](int row, __m512i left, __m512i right) {
            _mm512_store_si512(out + row, left);
            _mm512_store_si512(out + kTileRows + row, right);
          },
          [&](__m512 left, __m512 right) {
            *next_scale++ = left;
            *next_scale++ = right;
          });
    }
    multiply_decoded<kScaleOf>(g, part, {units, scales}, false, next);
  });
}

template <TileCode kCode, ScaleOf kScaleOf>
void multiply_coded(const TileGemm& g) {
  g.rows <= kMostFusedRows ? multiply_few<kCode, kScaleOf>(g) : multiply_many<kCode, kScaleOf>(g);
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

void multiply(const TileGemm& g, const TileEpilogue& e, TileRest&) {
  if (g.code == TileCode::kI8) {
    multiply_integers(g);
  } else if (g.code == TileCode::kBF16) {
    NextBlock next = next_block(g, num_passes(g, kMostRows) - 1);
    for_each_part(g, [&](const Part& part) {
      multiply_decoded<ScaleOf::kNothing>(g, part, {g.units + part.first * kStepBytes, nullptr},
                                          true, next);
    });
  } else {
    with_code(g.code, [&]<TileCode kCode>() {
      constexpr ScaleOf kScaleOf =
          kCode == TileCode::kNvfp4 ? ScaleOf::kHalfStep : ScaleOf::kNothing;
      if constexpr (kScaleOf == ScaleOf::kNothing) {
        if (g.group_steps > 0) {
          return multiply_coded<kCode, ScaleOf::kGroup>(g);
        }
      }
      multiply_coded<kCode, kScaleOf>(g);
    });
  }
  finisher_of(e)(e, g.c, 0, g.rows);
  finish_stores(e);
}

void finish(TileRest&) {}

}  // namespace

const TileKernels& avx512_tiles() {
  static const TileKernels kernels = {"avx512", multiply, finish};
  return kernels;
}

}  // namespace moebius::cpu
