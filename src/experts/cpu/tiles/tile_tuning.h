// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the tile experts choose by the processor's caches.  No result depends on it.
#pragma once

#include <cstdint>

#include "core/cpu_caches.h"

namespace moebius::cpu {

struct TileTuning {
  // See TileGemm: how far ahead of few rows' products codes are fetched to L1, or whether they are
  // fetched from some pages by turns.
  int64_t fetch_ahead;
  bool fetch_by_pages;
  bool f32_products;  // see TileGemm
  // The bytes of GEMM1's panels of an item, beside which weights stream through L2.
  int64_t panel_bytes;
};

// The choice for these caches.
TileTuning tile_tuning(const CpuCaches& caches);

// The choice for this processor, or what MOEBIUS_FETCH_AHEAD and MOEBIUS_PANEL_BYTES say.
// Throws InvalidArgument for a bad setting.
TileTuning tile_tuning();

}  // namespace moebius::cpu
