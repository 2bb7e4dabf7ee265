// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What every user of AMX needs besides the intrinsics of GCC 12, which say too little of the memory
// they touch.  Included by files built for AMX only; everything is static, so that no other file
// can end up with these instructions.
#pragma once

#include <cstdint>

namespace moebius {

// What ldtilecfg reads: palette 1; all eight tiles have 16 rows of 64 bytes unless changed.
struct alignas(64) AmxTileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(AmxTileConfig) == 64);

// Why assembly: the intrinsic declares 8 of the 64 bytes as read, so that their stores may be
// optimised away.
static inline void load_amx_config(const AmxTileConfig& config) {
  asm volatile("ldtilecfg %0" : : "m"(config));
}

// Before tile loads from memory that was stored to: they declare no memory they read.
static inline void publish_to_tiles(const void* memory) {
  asm volatile("" : : "r"(memory) : "memory");
}

}  // namespace moebius
