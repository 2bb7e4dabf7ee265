// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "app/bench/peak_kernels.h"
#include "core/amx.h"

namespace moebius::bench {

namespace {

constexpr int kRows = 16;
constexpr int kRowBytes = 64;

// Two tiles of A and two of B, which stay in L1.  Why 0.5: the processor's clock depends on the
// values.  Read as int8 they are 0 and 63.
struct Operands {
  Operands() {
    for (uint16_t& word : words) {
      word = 0x3f00;
    }
    publish_to_tiles(words);
  }
  alignas(64) uint16_t words[4 * kRows * kRowBytes / 2];
  const uint8_t* tile(int i) const {
    return reinterpret_cast<const uint8_t*>(words) + i * kRows * kRowBytes;
  }
};

// Tiles 0 to 3 accumulate; 4 and 5 hold A, 6 and 7 hold B.
template <bool kIntegers>
int64_t run(int64_t rounds) {
  static constexpr AmxTileConfig kConfig;
  const Operands x;
  load_amx_config(kConfig);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_loadd(4, x.tile(0), kRowBytes);
    _tile_loadd(6, x.tile(2), kRowBytes);
    _tile_loadd(5, x.tile(1), kRowBytes);
    _tile_loadd(7, x.tile(3), kRowBytes);
    if constexpr (kIntegers) {
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 5, 6);
      _tile_dpbssd(2, 4, 7);
      _tile_dpbssd(3, 5, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 5, 6);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_release();
  constexpr int64_t kDepth = kIntegers ? 64 : 32;
  return rounds * 4 * kRows * 16 * kDepth * 2;
}

}  // namespace

int64_t run_amx_bf16(int64_t rounds) {
  return run<false>(rounds);
}
int64_t run_amx_int8(int64_t rounds) {
  return run<true>(rounds);
}

}  // namespace moebius::bench
