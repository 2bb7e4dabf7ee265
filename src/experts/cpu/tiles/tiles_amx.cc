// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The tile kernels for AMX.  Four tile registers hold a 32 x 32 block of C, and each step takes
// four tile loads for four products.
//
// Where there are several panels, k is cut into parts whose units stay in L1 while the panels
// stream past them: `tileloaddt1` brings a panel in without pushing the units out.  On a Sapphire
// Rapids class core, 32 KiB of units (16 steps) reach 77 % of the peak, including C's way to memory
// and back; plain loads reach 55 %, and k without a cut 63 %.
#include <algorithm>
#include <cassert>
#include <utility>

#include "core/amx.h"
#include "experts/cpu/tiles/amx_beside.h"
#include "experts/cpu/tiles/amx_codes.h"
#include "experts/cpu/tiles/amx_prefetch.h"
#include "experts/cpu/tiles/avx512_epilogue.h"

namespace moebius::cpu {

namespace {

constexpr int64_t kStepsInL1 = 16;

// Tile configurations, by the rows of a single panel (0: whole panels).  C is in registers 0 to 3,
// rows of activations are in 4 and 5, weights in 6 and 7.  Why panels are not always whole: the
// rows that pad one would be fetched from L2 at every step, behind the weights.
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

// Blocks of C have this many rows until the next finish().
void configure_tiles(int64_t rows) {
  static constexpr TileConfigs kConfigs;
  load_amx_config(kConfigs.of_rows[rows <= kPanelRows ? rows : 0]);
}

// The panel whose C is in registers 0 to 3, or in 0 and 1 when it has one tile.
struct Held {
  float* c = nullptr;
  bool two_tiles = false;
};

inline void store_c(const Held& held) {
  _tile_stored(0, held.c, kTileRowBytes);
  _tile_stored(1, held.c + kTileFloats, kTileRowBytes);
  if (held.two_tiles) {
    _tile_stored(2, held.c + 2 * kTileFloats, kTileRowBytes);
    _tile_stored(3, held.c + 3 * kTileFloats, kTileRowBytes);
  }
}

// Adds the product of one tile of A and one of B to one tile of C.
template <bool kIntegers, int kTile>
inline void multiply_tile() {
  if constexpr (kIntegers) {
    if constexpr (kTile == 0) {
      _tile_dpbssd(0, 4, 6);
    } else if constexpr (kTile == 1) {
      _tile_dpbssd(1, 4, 7);
    } else if constexpr (kTile == 2) {
      _tile_dpbssd(2, 5, 6);
    } else {
      _tile_dpbssd(3, 5, 7);
    }
  } else {
    if constexpr (kTile == 0) {
      _tile_dpbf16ps(0, 4, 6);
    } else if constexpr (kTile == 1) {
      _tile_dpbf16ps(1, 4, 7);
    } else if constexpr (kTile == 2) {
      _tile_dpbf16ps(2, 5, 6);
    } else {
      _tile_dpbf16ps(3, 5, 7);
    }
  }
}

// Stores C of one panel, if any, and loads C of the next, or zeros, into the registers, tile by
// tile.  After each tile it calls then.operator()<tile>().  Why tile by tile: a store waits for the
// last product, and loads and products behind four stores would wait, too.
template <bool kLoads, typename Then>
[[gnu::always_inline]] inline void exchange_c(Held& held, const Held& next, Then then) {
  const Held last = std::exchange(held, next);
  if (last.c != nullptr) {
    _tile_stored(0, last.c, kTileRowBytes);
  }
  if constexpr (kLoads) {
    _tile_loadd(0, next.c, kTileRowBytes);
  } else {
    _tile_zero(0);
  }
  then.template operator()<0>();
  if (last.c != nullptr) {
    _tile_stored(1, last.c + kTileFloats, kTileRowBytes);
  }
  if constexpr (kLoads) {
    _tile_loadd(1, next.c + kTileFloats, kTileRowBytes);
  } else {
    _tile_zero(1);
  }
  then.template operator()<1>();
  if (last.c != nullptr && last.two_tiles) {
    _tile_stored(2, last.c + 2 * kTileFloats, kTileRowBytes);
  }
  if (!kLoads) {
    _tile_zero(2);
  } else if (next.two_tiles) {
    _tile_loadd(2, next.c + 2 * kTileFloats, kTileRowBytes);
  }
  then.template operator()<2>();
  if (last.c != nullptr && last.two_tiles) {
    _tile_stored(3, last.c + 3 * kTileFloats, kTileRowBytes);
  }
  if (!kLoads) {
    _tile_zero(3);
  } else if (next.two_tiles) {
    _tile_loadd(3, next.c + 3 * kTileFloats, kTileRowBytes);
  }
  then.template operator()<3>();
}
inline void start_c(Held& held, const Held& next) {
  exchange_c<false>(held, next, []<int>() {});
}

// Loads the tiles of one step.  stays: the unit should stay in L1.
template <bool kTwoTiles>
[[gnu::always_inline]] inline void load_step(const std::byte* a,
                                             const std::byte* b,
                                             bool stays,
                                             PrefetchLoop& prefetch) {
  _tile_stream_loadd(4, a, kTileRowBytes);
  prefetch.after_load();
  if (stays) {
    _tile_loadd(6, b, kTileRowBytes);
  } else {
    _tile_stream_loadd(6, b, kTileRowBytes);
  }
  prefetch.after_load();
  if constexpr (kTwoTiles) {
    _tile_stream_loadd(5, a + kTileBytes, kTileRowBytes);
  }
  prefetch.after_load();
  if (stays) {
    _tile_loadd(7, b + kTileBytes, kTileRowBytes);
  } else {
    _tile_stream_loadd(7, b + kTileBytes, kTileRowBytes);
  }
  prefetch.after_load();
}

template <bool kIntegers, bool kTwoTiles>
[[gnu::always_inline]] inline void multiply_tiles() {
  multiply_tile<kIntegers, 0>();
  multiply_tile<kIntegers, 1>();
  if constexpr (kTwoTiles) {
    multiply_tile<kIntegers, 2>();
    multiply_tile<kIntegers, 3>();
  }
}

int64_t num_panels(const TileGemm& g) {
  return (g.rows + kPanelRows - 1) / kPanelRows;
}

// Holds what is carried on from one panel to the next.
struct Carried {
  explicit Carried(const TileGemm& g) : prefetch(g, num_panels(g)) {}

  Held held;
  Prefetch prefetch;
};

// A product of some steps of one panel: C = A * B, or C += A * B.
struct PanelProduct {
  const std::byte* a;
  const std::byte* b;
  int64_t steps;
  int64_t staying;  // the number of first units that should stay in L1
  bool adds;
  Held c;
};

// Multiplies a panel of two tiles, or of one.
template <bool kIntegers, bool kTwoTiles, typename Beside>
void multiply_steps(const PanelProduct& product, Carried& carried, Pending& pending) {
  const std::byte* a = product.a;
  const std::byte* b = product.b;
  publish_to_tiles(a);
  publish_to_tiles(b);
  int64_t left = product.steps;
  const int64_t left_streamed = product.steps - product.staying;
  PrefetchLoop prefetch(carried.prefetch);
  Beside beside(pending);
  const auto load = [&]() __attribute__((always_inline)) {
    load_step<kTwoTiles>(a, b, left > left_streamed, prefetch);
    a += kStepBytes;
    b += kStepBytes;
    --left;
  };
  const auto multiply = []<int kTile>() __attribute__((always_inline)) {
    if constexpr (kTwoTiles || kTile < 2) {
      multiply_tile<kIntegers, kTile>();
    }
  };
  load();
  if (product.adds) {
    exchange_c<true>(carried.held, product.c, multiply);
  } else {
    exchange_c<false>(carried.held, product.c, multiply);
  }
  // The steps are one ahead of their quarters, since the exchange of C is a step, too.
  while (left >= 3) {
    beside.template quarter<0>();
    load();
    multiply_tiles<kIntegers, kTwoTiles>();
    beside.template quarter<1>();
    load();
    multiply_tiles<kIntegers, kTwoTiles>();
    beside.template quarter<2>();
    load();
    multiply_tiles<kIntegers, kTwoTiles>();
    beside.template quarter<3>();
    if (left == 0) {
      return;
    }
    load();
    multiply_tiles<kIntegers, kTwoTiles>();
  }
  beside.between();
  for (int64_t rest = left; rest > 0; --rest) {
    load();
    multiply_tiles<kIntegers, kTwoTiles>();
    beside.between();
  }
}

template <bool kIntegers, typename Beside>
void multiply_panel_beside(const PanelProduct& product, Carried& carried, Pending& pending) {
  if (product.c.two_tiles) {
    multiply_steps<kIntegers, true, Beside>(product, carried, pending);
  } else {
    multiply_steps<kIntegers, false, Beside>(product, carried, pending);
  }
}

template <bool kIntegers>
void multiply_panel(const PanelProduct& product, Carried& carried, Pending& pending) {
  constexpr SumForm kForm = kIntegers ? SumForm::kScaledIntegers : SumForm::kPlain;
  if (GatedRows<kForm>::supports(pending, product.steps)) {
    multiply_panel_beside<kIntegers, GatedRows<kForm>>(product, carried, pending);
  } else if (StreamedRows<kForm>::supports(pending)) {
    multiply_panel_beside<kIntegers, StreamedRows<kForm>>(product, carried, pending);
  } else {
    multiply_panel_beside<kIntegers, AnyRows>(product, carried, pending);
  }
}

// The steps of a part of k when k is cut evenly into as few parts as L1 can hold.
int64_t even_part(int64_t steps) {
  const int64_t parts = (steps + kStepsInL1 - 1) / kStepsInL1;
  return (steps + parts - 1) / parts;
}

// Whether k is not cut, so that C stays in its registers until it is complete: most units stay in
// L1 all the same.
bool is_one_part(const TileGemm& g) {
  return g.rows <= kPanelRows || g.steps <= kStepsInL1 * 3 / 2;
}

// Adds A * B over steps [first, first + steps), whose units or tiles are b, to C of all panels; the
// first steps set C.
template <bool kIntegers>
void multiply_part(const TileGemm& g,
                   const std::byte* b,
                   int64_t first,
                   int64_t steps,
                   Carried& carried,
                   Pending& pending) {
  for (int64_t p = 0; p * kPanelRows < g.rows; ++p) {
    const Held c = {g.c + p * kPanelFloats, g.rows - p * kPanelRows > kTileRows};
    const std::byte* a = g.a + (p * g.steps + first) * kStepBytes;
    multiply_panel<kIntegers>({a, b, steps, steps, first > 0, c}, carried, pending);
  }
}

// Multiplies a panel at a time.  Each panel is finished beside the next one, while its C is in L1.
template <bool kIntegers>
void gemm_panels(const TileGemm& g, const TileEpilogue& epilogue, TileRest& rest) {
  const int64_t staying = g.rows > kPanelRows ? std::min(g.steps, kStepsInL1) : g.steps;
  Carried carried(g);
  for (int64_t p = 0; p < num_panels(g); ++p) {
    const int64_t rows = std::min(kPanelRows, g.rows - p * kPanelRows);
    const Held c = {g.c + p % 2 * kPanelFloats, rows > kTileRows};
    const std::byte* a = g.a + p * g.steps * kStepBytes;
    Pending pending(rest, g.steps);
    multiply_panel<kIntegers>({a, g.units, g.steps, staying, false, c}, carried, pending);
    pending.flush();
    rest = {epilogue.of_panel(p), c.c, 0, rows};
  }
  store_c(carried.held);
}

// Multiplies all panels with as many units as L1 holds at a time.
template <bool kIntegers>
void gemm_parts(const TileGemm& g, Pending& pending) {
  const int64_t part = even_part(g.steps);
  Carried carried(g);
  for (int64_t first = 0; first < g.steps; first += part) {
    multiply_part<kIntegers>(g, g.units + first * kStepBytes, first,
                             std::min(part, g.steps - first), carried, pending);
  }
  store_c(carried.held);
}

// Decodes the units part by part into L1, and multiplies all panels with each part.
void gemm_coded(const TileGemm& g, Pending& pending) {
  alignas(64) std::byte tiles[kStepsInL1 * kStepBytes];
  const int64_t part = even_part(g.steps);
  Carried carried(g);
  for (int64_t first = 0; first < g.steps; first += part) {
    const int64_t steps = std::min(part, g.steps - first);
    publish_to_tiles(tiles);  // before what was loaded is written over
    decode_units(g, 0, first, steps, tiles);
    multiply_part<false>(g, tiles, first, steps, carried, pending);
  }
  store_c(carried.held);
}

// Makes a product per group of k, or per part of a group that L1 holds.  Products are scaled and
// summed in f32.
void gemm_groups(const TileGemm& g, Pending& pending) {
  alignas(64) std::byte tiles[kStepsInL1 * kStepBytes];
  alignas(64) float product[kPanelFloats];
  Carried carried(g);
  for (int64_t first = 0; first < g.steps;) {
    const int64_t group = first / g.group_steps;
    const int64_t end = std::min((group + 1) * g.group_steps, g.steps);
    const int64_t steps = std::min(kStepsInL1, end - first);
    decode_units(g, group, first, steps, tiles);
    for (int64_t p = 0; p < num_panels(g); ++p) {
      const int64_t rows = std::min(kPanelRows, g.rows - p * kPanelRows);
      const std::byte* a = g.a + (p * g.steps + first) * kStepBytes;
      const Held c = {product, rows > kTileRows};
      multiply_panel<false>({a, tiles, steps, steps, false, c}, carried, pending);
      store_c(std::exchange(carried.held, {}));
      add_scaled(g, group, p * kPanelRows, rows, product, g.c + p * kPanelFloats, first > 0);
    }
    first += steps;
  }
}

// Multiplies a single panel: a unit is decoded while the one before is multiplied, and C stays in
// registers.  Products are scaled at the same steps as in gemm_groups(), so that the bits of a row
// do not depend on how many rows there are.
template <TileCode kCode, bool kTwoTiles>
void gemm_coded_panel(const TileGemm& g, Pending& pending) {
  constexpr int64_t kSlots = 4;
  alignas(64) std::byte tiles[kSlots * kStepBytes];
  alignas(64) float product[kPanelFloats];
  const int64_t group_steps = g.group_steps > 0 ? g.group_steps : g.steps;
  int64_t group = 0;
  int64_t left_in_group = group_steps;
  int64_t left = std::min(left_in_group, kStepsInL1);  // until a product is scaled
  bool adds = false;
  Prefetch next_block(g, 1);
  PrefetchLoop prefetch(next_block);
  publish_to_tiles(g.a);
  decode_unit<kCode>(g, 0, 0, tiles);
  Held held;
  start_c(held, {g.group_steps > 0 ? product : g.c, kTwoTiles});
  for (int64_t s = 0; s < g.steps; ++s) {
    --left;
    --left_in_group;
    if (s + 1 < g.steps) {
      const int64_t next_group = left_in_group > 0 ? group : group + 1;
      decode_unit<kCode>(g, next_group, s + 1, tiles + (s + 1) % kSlots * kStepBytes);
    }
    publish_to_tiles(tiles);
    load_step<kTwoTiles>(g.a + s * kStepBytes, tiles + s % kSlots * kStepBytes, true, prefetch);
    multiply_tiles<false, kTwoTiles>();
    pending.step();
    if (g.group_steps > 0 && (left == 0 || s + 1 == g.steps)) {
      start_c(held, held);
      add_scaled(g, group, 0, g.rows, product, g.c, adds);
      adds = true;
      if (left_in_group == 0) {
        ++group;
        left_in_group = group_steps;
      }
      left = std::min(left_in_group, kStepsInL1);
    }
  }
  if (g.group_steps == 0) {
    store_c(held);
  }
}

void multiply(const TileGemm& g, const TileEpilogue& epilogue, TileRest& rest) {
  assert(rest.begin == rest.end || rest.c != g.c);
  if (rest.c == nullptr) {
    configure_tiles(g.rows);
  }
  const bool is_plain = g.code == TileCode::kBF16 || g.code == TileCode::kI8;
  if (is_plain && is_one_part(g)) {
    g.code == TileCode::kI8 ? gemm_panels<true>(g, epilogue, rest)
                            : gemm_panels<false>(g, epilogue, rest);
    return;
  }
  Pending pending(rest, g.steps * num_panels(g));
  if (is_plain) {
    g.code == TileCode::kI8 ? gemm_parts<true>(g, pending) : gemm_parts<false>(g, pending);
  } else if (g.rows <= kPanelRows) {
    with_code(g.code, [&]<TileCode kCode>() {
      g.rows > kTileRows ? gemm_coded_panel<kCode, true>(g, pending)
                         : gemm_coded_panel<kCode, false>(g, pending);
    });
  } else if (g.group_steps > 0) {
    gemm_groups(g, pending);
  } else {
    gemm_coded(g, pending);
  }
  pending.flush();
  rest = {epilogue, g.c, 0, g.rows};
}

void finish(TileRest& rest) {
  finisher_of(rest.epilogue)(rest.epilogue, rest.c, rest.begin, rest.end);
  finish_stores(rest.epilogue);
  rest = {};
  _tile_release();
}

}  // namespace

const TileKernels& amx_tiles() {
  static const TileKernels kernels = {"amx", Operand::kBF16, multiply, finish};
  return kernels;
}

}  // namespace moebius::cpu
