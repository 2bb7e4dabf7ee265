// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// AMX: a 32 x 32 block of C in four tile registers, four tile loads for four products per step.
//
// Where there are several panels, k is cut into parts whose units stay in L1 while the panels
// stream past them: `tileloaddt1` brings a panel in without pushing the units out.  On a Sapphire
// Rapids class core, 32 KiB of units (16 steps) give 77 % of the peak including C's way to memory
// and back, plain loads 55 %, no cut 63 %.
#include <algorithm>

#include "core/amx.h"
#include "experts/cpu/tiles/avx512_tiles.h"

namespace moebius::cpu {

namespace {

constexpr int64_t kStepsInL1 = 16;
constexpr int64_t kLineBytes = 64;

// By the rows of a single panel (0: whole panels).  C is in registers 0 to 3, rows of activations
// in 4 and 5, weights in 6 and 7.  Why not always whole panels: the rows that pad one would be
// fetched from L2 at every step, and stand in line behind the weights.
struct TileConfigs {
  AmxTileConfig of_rows[kPanelRows + 1];

  constexpr TileConfigs() {
    for (uint8_t rows = 1; rows <= kPanelRows; ++rows) {
      const uint8_t upper = rows < kTileRows ? rows : uint8_t{kTileRows};
      const uint8_t lower = rows > kTileRows ? uint8_t(rows - kTileRows) : uint8_t{kTileRows};
      AmxTileConfig& config = of_rows[rows];
      config.rows[0] = config.rows[1] = config.rows[4] = upper;
      config.rows[2] = config.rows[3] = config.rows[5] = lower;
    }
  }
};

class Tiles {
 public:
  explicit Tiles(int64_t rows) {
    static constexpr TileConfigs kConfigs;
    load_amx_config(kConfigs.of_rows[rows <= kPanelRows ? rows : 0]);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// What is read next, a few lines at every step: together where there are several panels, after each
// of the step's four tile loads where units are decoded, whose own loads would stand in line.
struct Prefetch {
  const std::byte* at = nullptr;
  int64_t lines_per_load = 0;

  void lines(int64_t count) {
    for (int64_t i = 0; i < count; ++i, at += kLineBytes) {
      _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
    }
  }
  template <bool kSpreads>
  void after_load() {
    lines(kSpreads ? lines_per_load : 0);
  }
  template <bool kSpreads>
  void after_step() {
    lines(kSpreads ? 0 : 4 * lines_per_load);
  }
};

struct Micro {
  const std::byte* a;  // of one panel
  const std::byte* b;
  float* c;
  int64_t steps;
};

// C in registers 0 to 3, or 0 and 1 for a panel of one tile.
template <bool kTwoTiles>
inline void zero_c() {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTwoTiles) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

template <bool kTwoTiles>
inline void load_c(const float* c) {
  _tile_loadd(0, c, kTileRowBytes);
  _tile_loadd(1, c + kTileFloats, kTileRowBytes);
  if constexpr (kTwoTiles) {
    _tile_loadd(2, c + 2 * kTileFloats, kTileRowBytes);
    _tile_loadd(3, c + 3 * kTileFloats, kTileRowBytes);
  }
}

template <bool kTwoTiles>
inline void store_c(float* c) {
  _tile_stored(0, c, kTileRowBytes);
  _tile_stored(1, c + kTileFloats, kTileRowBytes);
  if constexpr (kTwoTiles) {
    _tile_stored(2, c + 2 * kTileFloats, kTileRowBytes);
    _tile_stored(3, c + 3 * kTileFloats, kTileRowBytes);
  }
}

// C += one step.
template <bool kIntegers, bool kTwoTiles, bool kSpreads>
inline __attribute__((always_inline)) void multiply_step(const std::byte* a,
                                                         const std::byte* b,
                                                         Prefetch& prefetch) {
  _tile_stream_loadd(4, a, kTileRowBytes);
  prefetch.after_load<kSpreads>();
  _tile_loadd(6, b, kTileRowBytes);
  prefetch.after_load<kSpreads>();
  if constexpr (kTwoTiles) {
    _tile_stream_loadd(5, a + kTileBytes, kTileRowBytes);
  }
  prefetch.after_load<kSpreads>();
  _tile_loadd(7, b + kTileBytes, kTileRowBytes);
  prefetch.after_load<kSpreads>();
  if constexpr (kIntegers) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    if constexpr (kTwoTiles) {
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
    }
  } else {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwoTiles) {
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  prefetch.after_step<kSpreads>();
}

// C (+)= A * B for one panel of two tiles, or of one.
template <bool kIntegers, bool kTwoTiles, bool kAdds>
inline __attribute__((always_inline)) void multiply(const Micro& m, Prefetch& prefetch) {
  publish_to_tiles(m.a);
  publish_to_tiles(m.b);
  if constexpr (kAdds) {
    publish_to_tiles(m.c);
    load_c<kTwoTiles>(m.c);
  } else {
    zero_c<kTwoTiles>();
  }
  for (int64_t s = 0; s < m.steps; ++s) {
    multiply_step<kIntegers, kTwoTiles, false>(m.a + s * kStepBytes, m.b + s * kStepBytes,
                                               prefetch);
  }
  store_c<kTwoTiles>(m.c);
}

template <bool kIntegers>
void multiply_panel(const Micro& m, bool two_tiles, bool adds, Prefetch& prefetch) {
  if (two_tiles) {
    adds ? multiply<kIntegers, true, true>(m, prefetch)
         : multiply<kIntegers, true, false>(m, prefetch);
  } else {
    adds ? multiply<kIntegers, false, true>(m, prefetch)
         : multiply<kIntegers, false, false>(m, prefetch);
  }
}

Prefetch prefetch_of(const TileGemm& g, int64_t num_panels) {
  if (g.next_units == nullptr) {
    return {};
  }
  const int64_t lines = g.steps * unit_bytes(g.code) / kLineBytes;
  const int64_t loads = 4 * g.steps * num_panels;
  return {g.next_units, (lines + loads - 1) / loads};
}

// Parts of k: all of it for one panel, else what L1 holds of units, evenly.
int64_t steps_per_part(int64_t steps, int64_t num_panels) {
  if (num_panels == 1) {
    return steps;
  }
  const int64_t parts = (steps + kStepsInL1 - 1) / kStepsInL1;
  return (steps + parts - 1) / parts;
}

template <bool kIntegers>
void gemm_plain(const TileGemm& g) {
  const int64_t num_panels = (g.rows + kPanelRows - 1) / kPanelRows;
  const int64_t part = steps_per_part(g.steps, num_panels);
  Prefetch prefetch = prefetch_of(g, num_panels);
  for (int64_t first = 0; first < g.steps; first += part) {
    const int64_t steps = std::min(part, g.steps - first);
    for (int64_t p = 0; p < num_panels; ++p) {
      const Micro m = {g.a + (p * g.steps + first) * kStepBytes, g.units + first * kStepBytes,
                       g.c + p * kPanelFloats, steps};
      multiply_panel<kIntegers>(m, g.rows - p * kPanelRows > kTileRows, first > 0, prefetch);
    }
  }
}

// The units are decoded part by part into L1.
void gemm_coded(const TileGemm& g) {
  alignas(64) std::byte tiles[kStepsInL1 * kStepBytes];
  const int64_t num_panels = (g.rows + kPanelRows - 1) / kPanelRows;
  const int64_t parts = (g.steps + kStepsInL1 - 1) / kStepsInL1;
  const int64_t part = (g.steps + parts - 1) / parts;
  Prefetch prefetch = prefetch_of(g, num_panels);
  for (int64_t first = 0; first < g.steps; first += part) {
    const int64_t steps = std::min(part, g.steps - first);
    decode_units(g, 0, first, steps, tiles);
    for (int64_t p = 0; p < num_panels; ++p) {
      const Micro m = {g.a + (p * g.steps + first) * kStepBytes, tiles, g.c + p * kPanelFloats,
                       steps};
      multiply_panel<false>(m, g.rows - p * kPanelRows > kTileRows, first > 0, prefetch);
    }
  }
}

// A product per group of k, scaled and summed in f32.
void gemm_groups(const TileGemm& g) {
  alignas(64) std::byte tiles[kStepsInL1 * kStepBytes];
  alignas(64) float product[kPanelFloats];
  const int64_t num_panels = (g.rows + kPanelRows - 1) / kPanelRows;
  Prefetch prefetch = prefetch_of(g, num_panels);
  for (int64_t first = 0; first < g.steps;) {
    const int64_t group = first / g.group_steps;
    const int64_t end = std::min((group + 1) * g.group_steps, g.steps);
    const int64_t steps = std::min(kStepsInL1, end - first);
    decode_units(g, group, first, steps, tiles);
    for (int64_t p = 0; p < num_panels; ++p) {
      const int64_t rows = std::min(kPanelRows, g.rows - p * kPanelRows);
      const Micro m = {g.a + (p * g.steps + first) * kStepBytes, tiles, product, steps};
      multiply_panel<false>(m, rows > kTileRows, false, prefetch);
      add_scaled(g, group, p * kPanelRows, rows, product, g.c + p * kPanelFloats, first > 0);
    }
    first += steps;
  }
}

// One panel: a unit is decoded while the one before is multiplied, and C stays in registers.
template <TileCode kCode, bool kTwoTiles>
void gemm_coded_panel(const TileGemm& g) {
  constexpr int64_t kSlots = 4;
  alignas(64) std::byte tiles[kSlots * kStepBytes];
  alignas(64) float product[kPanelFloats];
  const int64_t group_steps = g.group_steps > 0 ? g.group_steps : g.steps;
  Prefetch prefetch = prefetch_of(g, 1);
  publish_to_tiles(g.a);
  decode_unit<kCode>(g, 0, 0, tiles);
  zero_c<kTwoTiles>();
  for (int64_t s = 0, group = 0, left = group_steps; s < g.steps; ++s) {
    --left;
    if (s + 1 < g.steps) {
      const int64_t next_group = left > 0 ? group : group + 1;
      decode_unit<kCode>(g, next_group, s + 1, tiles + (s + 1) % kSlots * kStepBytes);
    }
    publish_to_tiles(tiles);
    multiply_step<false, kTwoTiles, true>(g.a + s * kStepBytes, tiles + s % kSlots * kStepBytes,
                                          prefetch);
    if (g.group_steps > 0 && (left == 0 || s + 1 == g.steps)) {
      store_c<kTwoTiles>(product);
      zero_c<kTwoTiles>();
      add_scaled(g, group, 0, g.rows, product, g.c, group > 0);
      ++group;
      left = group_steps;
    }
  }
  if (g.group_steps == 0) {
    store_c<kTwoTiles>(g.c);
  }
}

void gemm(const TileGemm& g) {
  const Tiles tiles(g.rows);
  if (g.code == TileCode::kI8) {
    gemm_plain<true>(g);
  } else if (g.code == TileCode::kBF16) {
    gemm_plain<false>(g);
  } else if (g.rows <= kPanelRows) {
    with_code(g.code, [&]<TileCode kCode>() {
      g.rows > kTileRows ? gemm_coded_panel<kCode, true>(g) : gemm_coded_panel<kCode, false>(g);
    });
  } else if (g.group_steps > 0) {
    gemm_groups(g);
  } else {
    gemm_coded(g);
  }
}

}  // namespace

const TileKernels& amx_tiles() {
  static const TileKernels kernels = {"amx", true, gemm, finish_tiles, activate_tiles, store_tiles};
  return kernels;
}

}  // namespace moebius::cpu
