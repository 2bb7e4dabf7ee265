// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "bench/peak_kernels.h"

namespace moebius::bench {

namespace {

constexpr int kRows = 16;
constexpr int kRowBytes = 64;

// What ldtilecfg reads: palette 1, all eight tiles of 16 rows of 64 bytes.
struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Two tiles of A and two of B in L1.  Values matter to the clock: these are 0.5, as int8 0 and 63.
struct Operands {
  Operands() {
    for (uint16_t& word : words) {
      word = 0x3f00;
    }
    asm volatile("" : : "r"(words) : "memory");  // the tile loads declare no memory they read
  }
  alignas(64) uint16_t words[4 * kRows * kRowBytes / 2];
  const uint8_t* tile(int i) const {
    return reinterpret_cast<const uint8_t*>(words) + i * kRows * kRowBytes;
  }
};

// Why inline assembly: the intrinsic declares 8 of the 64 bytes as read (GCC 12).
void load_config() {
  static constexpr TileConfig kConfig;
  asm volatile("ldtilecfg %0" : : "m"(kConfig));
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

}  // namespace

// Accumulators 0 to 3, A in 4 and 5, B in 6 and 7.
int64_t run_amx_bf16(int64_t rounds) {
  const Operands x;
  load_config();
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_loadd(4, x.tile(0), kRowBytes);
    _tile_loadd(6, x.tile(2), kRowBytes);
    _tile_loadd(5, x.tile(1), kRowBytes);
    _tile_loadd(7, x.tile(3), kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return rounds * 4 * kRows * 16 * 32 * 2;
}

int64_t run_amx_int8(int64_t rounds) {
  const Operands x;
  load_config();
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_loadd(4, x.tile(0), kRowBytes);
    _tile_loadd(6, x.tile(2), kRowBytes);
    _tile_loadd(5, x.tile(1), kRowBytes);
    _tile_loadd(7, x.tile(3), kRowBytes);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 5, 6);
    _tile_dpbssd(2, 4, 7);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
  return rounds * 4 * kRows * 16 * 64 * 2;
}

}  // namespace moebius::bench
