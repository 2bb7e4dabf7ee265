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

// What is read next, spread evenly over the tile loads: in a burst, those would stand in line.
class Prefetch {
 public:
  Prefetch(const TileGemm& g, int64_t num_panels) : span_(g.next.begin()), last_(g.next.end()) {
    int64_t lines = 0;
    for (const auto& span : g.next) {
      lines += (static_cast<int64_t>(span.size()) + kLineBytes - 1) / kLineBytes;
    }
    const int64_t loads = kLoadsPerStep * g.steps * num_panels;
    lines_per_load_ = ((lines << kFractionBits) + loads - 1) / loads;
    at_ = span_->data();
    skip_empty();
  }

  void after_load() {
    for (due_ += lines_per_load_; due_ >= kOne; due_ -= kOne) {
      _mm_prefetch(reinterpret_cast<const char*>(at_), _MM_HINT_T1);
      at_ += kLineBytes;
      skip_empty();
    }
  }

 private:
  static constexpr int64_t kLoadsPerStep = 4;
  static constexpr int kFractionBits = 20;
  static constexpr int64_t kOne = int64_t{1} << kFractionBits;

  // To the next span when one has ended; past the last there is nothing more to do.
  void skip_empty() {
    while (at_ >= span_->data() + span_->size()) {
      if (++span_ == last_) {
        --span_;
        lines_per_load_ = 0;
        return;
      }
      at_ = span_->data();
    }
  }

  const std::span<const std::byte>* span_;
  const std::span<const std::byte>* last_;
  const std::byte* at_ = nullptr;
  int64_t lines_per_load_ = 0;  // both in units of 1 / kOne
  int64_t due_ = 0;
};

// Rows of C that are complete, finished a few at every step of the next panel: their arithmetic and
// stores take place while the tile unit multiplies.
class Pending {
 public:
  explicit Pending(const TileEpilogue& epilogue) : epilogue_(epilogue) {}

  void set(const float* c, int64_t begin, int64_t end, int64_t steps) {
    flush();
    c_ = c;
    row_ = begin;
    end_ = end;
    per_step_ = (end - begin + steps - 1) / steps;
  }
  void step() {
    if (row_ < end_) {
      finish(std::min(row_ + per_step_, end_));
    }
  }
  void flush() {
    if (row_ < end_) {
      finish(end_);
    }
  }

 private:
  void finish(int64_t end) {
    finish_rows(epilogue_, c_, row_, end);
    row_ = end;
  }

  const TileEpilogue& epilogue_;
  const float* c_ = nullptr;
  int64_t row_ = 0;
  int64_t end_ = 0;
  int64_t per_step_ = 0;
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
template <bool kIntegers, bool kTwoTiles>
inline __attribute__((always_inline)) void multiply_step(const std::byte* a,
                                                         const std::byte* b,
                                                         Prefetch& prefetch) {
  _tile_stream_loadd(4, a, kTileRowBytes);
  prefetch.after_load();
  _tile_loadd(6, b, kTileRowBytes);
  prefetch.after_load();
  if constexpr (kTwoTiles) {
    _tile_stream_loadd(5, a + kTileBytes, kTileRowBytes);
  }
  prefetch.after_load();
  _tile_loadd(7, b + kTileBytes, kTileRowBytes);
  prefetch.after_load();
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
}

// C (+)= A * B for one panel of two tiles, or of one.
template <bool kIntegers, bool kTwoTiles, bool kAdds>
inline __attribute__((always_inline)) void multiply(const Micro& m,
                                                    Prefetch& prefetch,
                                                    Pending& pending) {
  publish_to_tiles(m.a);
  publish_to_tiles(m.b);
  if constexpr (kAdds) {
    publish_to_tiles(m.c);
    load_c<kTwoTiles>(m.c);
  } else {
    zero_c<kTwoTiles>();
  }
  for (int64_t s = 0; s < m.steps; ++s) {
    multiply_step<kIntegers, kTwoTiles>(m.a + s * kStepBytes, m.b + s * kStepBytes, prefetch);
    pending.step();
  }
  store_c<kTwoTiles>(m.c);
}

template <bool kIntegers>
void multiply_panel(
    const Micro& m, bool two_tiles, bool adds, Prefetch& prefetch, Pending& pending) {
  if (two_tiles) {
    adds ? multiply<kIntegers, true, true>(m, prefetch, pending)
         : multiply<kIntegers, true, false>(m, prefetch, pending);
  } else {
    adds ? multiply<kIntegers, false, true>(m, prefetch, pending)
         : multiply<kIntegers, false, false>(m, prefetch, pending);
  }
}

// Parts of k: all of it for one panel, else what L1 holds of units, evenly.
int64_t steps_per_part(int64_t steps, int64_t num_panels) {
  if (num_panels == 1) {
    return steps;
  }
  const int64_t parts = (steps + kStepsInL1 - 1) / kStepsInL1;
  return (steps + parts - 1) / parts;
}

// C (+)= A * B over steps [first, first + steps), whose units or tiles are b, for all panels.
template <bool kIntegers>
void multiply_part(const TileGemm& g,
                   const std::byte* b,
                   int64_t first,
                   int64_t steps,
                   Prefetch& prefetch,
                   Pending& pending) {
  for (int64_t begin = 0; begin < g.rows; begin += kPanelRows) {
    const int64_t end = std::min(begin + kPanelRows, g.rows);
    const int64_t p = begin / kPanelRows;
    const Micro m = {g.a + (p * g.steps + first) * kStepBytes, b, g.c + p * kPanelFloats, steps};
    multiply_panel<kIntegers>(m, end - begin > kTileRows, first > 0, prefetch, pending);
    if (first + steps == g.steps) {
      pending.set(g.c, begin, end, steps);
    }
  }
}

template <bool kIntegers>
void gemm_plain(const TileGemm& g, Pending& pending) {
  const int64_t num_panels = (g.rows + kPanelRows - 1) / kPanelRows;
  const int64_t part = steps_per_part(g.steps, num_panels);
  Prefetch prefetch(g, num_panels);
  for (int64_t first = 0; first < g.steps; first += part) {
    const int64_t steps = std::min(part, g.steps - first);
    multiply_part<kIntegers>(g, g.units + first * kStepBytes, first, steps, prefetch, pending);
  }
}

// The units are decoded part by part into L1.
void gemm_coded(const TileGemm& g, Pending& pending) {
  alignas(64) std::byte tiles[kStepsInL1 * kStepBytes];
  const int64_t num_panels = (g.rows + kPanelRows - 1) / kPanelRows;
  const int64_t part = steps_per_part(g.steps, num_panels);
  Prefetch prefetch(g, num_panels);
  for (int64_t first = 0; first < g.steps; first += part) {
    const int64_t steps = std::min(part, g.steps - first);
    decode_units(g, 0, first, steps, tiles);
    multiply_part<false>(g, tiles, first, steps, prefetch, pending);
  }
}

// A product per group of k, scaled and summed in f32.
void gemm_groups(const TileGemm& g, Pending& pending) {
  alignas(64) std::byte tiles[kStepsInL1 * kStepBytes];
  alignas(64) float product[kPanelFloats];
  const int64_t num_panels = (g.rows + kPanelRows - 1) / kPanelRows;
  Prefetch prefetch(g, num_panels);
  for (int64_t first = 0; first < g.steps;) {
    const int64_t group = first / g.group_steps;
    const int64_t end = std::min((group + 1) * g.group_steps, g.steps);
    const int64_t steps = std::min(kStepsInL1, end - first);
    decode_units(g, group, first, steps, tiles);
    for (int64_t p = 0; p < num_panels; ++p) {
      const int64_t rows = std::min(kPanelRows, g.rows - p * kPanelRows);
      const Micro m = {g.a + (p * g.steps + first) * kStepBytes, tiles, product, steps};
      multiply_panel<false>(m, rows > kTileRows, false, prefetch, pending);
      add_scaled(g, group, p * kPanelRows, rows, product, g.c + p * kPanelFloats, first > 0);
      if (first + steps == g.steps) {
        pending.set(g.c, p * kPanelRows, p * kPanelRows + rows, std::min(kStepsInL1, steps));
      }
    }
    first += steps;
  }
}

// One panel: a unit is decoded while the one before is multiplied, and C stays in registers.
template <TileCode kCode, bool kTwoTiles>
void gemm_coded_panel(const TileGemm& g, Pending& pending) {
  constexpr int64_t kSlots = 4;
  alignas(64) std::byte tiles[kSlots * kStepBytes];
  alignas(64) float product[kPanelFloats];
  const int64_t group_steps = g.group_steps > 0 ? g.group_steps : g.steps;
  Prefetch prefetch(g, 1);
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
    multiply_step<false, kTwoTiles>(g.a + s * kStepBytes, tiles + s % kSlots * kStepBytes,
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
  pending.set(g.c, 0, g.rows, 1);
}

void multiply(const TileGemm& g, const TileEpilogue& epilogue) {
  Pending pending(epilogue);
  {
    const Tiles tiles(g.rows);
    if (g.code == TileCode::kI8) {
      gemm_plain<true>(g, pending);
    } else if (g.code == TileCode::kBF16) {
      gemm_plain<false>(g, pending);
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
  }
  pending.flush();
  finish_stores(epilogue);
}

}  // namespace

const TileKernels& amx_tiles() {
  static const TileKernels kernels = {"amx", true, multiply};
  return kernels;
}

}  // namespace moebius::cpu
