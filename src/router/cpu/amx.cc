// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// AMX bf16.  One pass over H computes 32 tokens times 32 experts.  Tiles 0 to 3 are accumulators, 4
// and 5 hold tokens, and 6 and 7 hold two panels, so that four loads feed four products.  A product
// of tiles is one step of the sum that ref.h prescribes.
#include "core/amx.h"

#include <immintrin.h>

#include "router/cpu/simd.h"

namespace moebius::router {

namespace {

constexpr int kTileTokens = 16;
constexpr int kRowBytes = 64;  // 32 bf16, or 16 f32
static_assert(kChainDepth * 2 == kRowBytes && kPanelRow * 2 == kRowBytes);
static_assert(kAmxTokens == 2 * kTileTokens && kPanelWidth * 4 == kRowBytes);

// 16 tokens, the last of which may not exist.
struct TokenTile {
  const uint16_t* x;
  int64_t x_stride;
  int num_tokens;
  alignas(64) uint16_t staged[kTileTokens * kChainDepth];

  void set(const AmxArgs& a, int first) {
    x = a.x + first * a.x_stride;
    x_stride = a.x_stride;
    num_tokens = a.num_tokens - first < kTileTokens ? a.num_tokens - first : kTileTokens;
    for (uint16_t& element : staged) {
      element = 0;
    }
  }
  // Columns [begin, begin + depth) of the tokens, with zeros for missing elements; *stride is in
  // bytes.
  const void* columns(int64_t begin, int64_t depth, int64_t* stride) {
    if (num_tokens == kTileTokens && depth == kChainDepth) {
      *stride = x_stride * 2;
      return x + begin;
    }
    for (int t = 0; t < num_tokens; ++t) {
      for (int64_t h = 0; h < kChainDepth; ++h) {
        staged[t * kChainDepth + h] = h < depth ? x[t * x_stride + begin + h] : uint16_t{0};
      }
    }
    publish_to_tiles(staged);
    *stride = kRowBytes;
    return staged;
  }
};

}  // namespace

void amx_logits(const AmxArgs& a) {
  static constexpr AmxTileConfig kConfig;
  load_amx_config(kConfig);
  TokenTile tokens[2];
  tokens[0].set(a, 0);
  const bool has_second = a.num_tokens > kTileTokens;
  if (has_second) {
    tokens[1].set(a, kTileTokens);
  }
  for (int p = 0; p < a.num_panels; p += 2) {
    const bool has_pair = p + 1 < a.num_panels;  // without a pair the panel is computed twice
    const char* panel = static_cast<const char*>(a.panels) + p * a.panel_stride * 2;
    const char* next_panel = has_pair ? panel + a.panel_stride * 2 : panel;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t h = 0; h < a.depth; h += kChainDepth) {
      const int64_t depth = a.depth - h < kChainDepth ? a.depth - h : kChainDepth;
      const int64_t panel_offset = h / 2 * kRowBytes;
      int64_t stride = 0;
      const void* x = tokens[0].columns(h, depth, &stride);
      _tile_loadd(4, x, stride);
      _tile_loadd(6, panel + panel_offset, kRowBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, next_panel + panel_offset, kRowBytes);
      _tile_dpbf16ps(1, 4, 7);
      if (has_second) {
        x = tokens[1].columns(h, depth, &stride);
        _tile_loadd(5, x, stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    float* out = a.out + p * kAmxTokens * kPanelWidth;
    _tile_stored(0, out, kRowBytes);
    _tile_stored(2, out + kTileTokens * kPanelWidth, kRowBytes);
    if (has_pair) {
      out += kAmxTokens * kPanelWidth;
      _tile_stored(1, out, kRowBytes);
      _tile_stored(3, out + kTileTokens * kPanelWidth, kRowBytes);
    }
  }
  _tile_release();
}

}  // namespace moebius::router
