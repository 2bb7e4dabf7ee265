// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/tiles/tile_tuning.h"

#include <algorithm>

#include "core/cpu_features.h"
#include "moebius/settings.h"

namespace moebius::cpu {

namespace {

// A line stays in L1 from when it is fetched until it is read, among the activations and the lines
// of another place.  With 32 KiB of L1 (Zen 3) 1 KiB was the fastest, and 4 KiB 3 to 9 % slower;
// with 48 KiB (Sapphire Rapids) 4 KiB was 10 to 20 % faster than 1 KiB, and 8 KiB no better.
constexpr int64_t kLargeL1 = int64_t{48} << 10;
constexpr int64_t kAheadInLarge = 4096;
constexpr int64_t kAheadInSmall = 1024;
// Beside an L2 of 512 KiB, too, panels of 320 KiB made prefill 3 to 5 % slower than these.
constexpr int64_t kLeastPanelBytes = int64_t{5} << 18;

}  // namespace

TileTuning tile_tuning(const CpuCaches& caches) {
  // What panels leave of L2 is for what streams past.
  return {caches.l1_data_bytes >= kLargeL1 ? kAheadInLarge : kAheadInSmall, false, false,
          std::max(kLeastPanelBytes, caches.l2_bytes / 8 * 5)};
}

TileTuning tile_tuning() {
  const TileTuning chosen = tile_tuning(cpu_caches());
  const auto ahead = setting_int("MOEBIUS_FETCH_AHEAD");
  // Intel's own prefetching follows each page apart, AMD's is faster with lines in order.  On Intel
  // vdpbf16ps takes as long as four multiply-adds of f32, on AMD as long as one.
  const bool is_intel = cpu_features().intel;
  return {ahead.value_or(chosen.fetch_ahead), is_intel && !ahead, is_intel,
          setting_int("MOEBIUS_PANEL_BYTES").value_or(chosen.panel_bytes)};
}

}  // namespace moebius::cpu
