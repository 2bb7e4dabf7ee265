// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// This header has what users of AMX need besides the intrinsics of GCC 12, which do not declare all
// the memory that they touch.  Only files built for AMX include this header.  Its functions are
// static, so that no other file can end up with these instructions.
#pragma once

#include <cstdint>

namespace moebius {

// The operand of ldtilecfg, with palette 1.  By default all eight tiles have 16 rows of 64 bytes.
struct alignas(64) AmxTileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(AmxTileConfig) == 64);

// Why assembly: the intrinsic declares that it reads 8 of the 64 bytes, so the compiler may drop
// the stores of the others.
static inline void load_amx_config(const AmxTileConfig& config) {
  asm volatile("ldtilecfg %0" : : "m"(config));
}

// Call this between stores to memory and tile loads from it, because tile loads do not declare the
// memory that they read.
static inline void publish_to_tiles(const void* memory) {
  asm volatile("" : : "r"(memory) : "memory");
}

}  // namespace moebius
