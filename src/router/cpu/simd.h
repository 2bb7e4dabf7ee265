// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The table of plain functions that one instruction set contributes to the CPU router.
// Why only structs and plain functions: a file that is compiled for an instruction set calls no
// inline function of a shared header, because the linker might keep a copy that other machines
// cannot run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moebius/dtype.h"

namespace moebius::router {

inline constexpr int kPanelWidth = 16;    // experts per panel
inline constexpr int kPanelRow = 32;      // elements per row of a panel, which has two h
inline constexpr int kChainDepth = 32;    // h per pair of chains, see ref.h
inline constexpr int kMaxTileRows = 6;    // tokens per tile
inline constexpr int kMaxTilePanels = 4;  // panels per tile

// A panel is [depth / 2, kPanelRow].  Its row for h and h + 1 has 16 pairs of an expert's two
// elements for bf16; for other types it has 16 elements of h and then 16 of h + 1.
struct TileArgs {
  const float* x;  // [rows, depth], rows x_stride elements apart
  int64_t x_stride;
  int rows;              // 1..kMaxTileRows
  const void* panels;    // num_panels panels of `type`
  DType type;            // f32, f16 or bf16
  int64_t panel_stride;  // elements between panels
  int num_panels;        // 1..kMaxTilePanels
  int64_t depth;         // a multiple of kChainDepth
  float* out;            // [num_panels, rows, kPanelWidth]
};

struct SimdOps {
  // out[0, n) = in[0, n) as f32.
  void (*widen)(const void* in, DType type, int64_t n, float* out);
  // out[p, r, lane] += x[r, h] * panels[p, h, lane] over h in the order of ref.h.
  void (*tile)(const TileArgs& args);
  // These two equal score() of scoring.h bit for bit, on rows padded with -inf.  REQUIRES: n % 16
  // == 0.
  void (*softmax)(float* s, int64_t n);
  void (*sigmoid)(float* s, int64_t n);
  // Finds the ids of the k best keys above -inf, best first, ties to the lower id, and returns
  // their number.  Overwrites the chosen keys.  REQUIRES: n % 16 == 0, n > 0, no NaN.
  int64_t (*topk)(float* keys, int64_t n, int64_t k, int32_t* ids);
};

inline constexpr int kAmxTokens = 32;

// A block of logits that AMX computes.
struct AmxArgs {
  const uint16_t* x;  // bf16 [num_tokens, depth], rows x_stride elements apart
  int64_t x_stride;
  int num_tokens;      // 1..kAmxTokens
  const void* panels;  // num_panels panels of bf16
  int64_t panel_stride;
  int num_panels;
  int64_t depth;  // panels are padded with zeros to a multiple of kChainDepth
  float* out;     // [num_panels, kAmxTokens, kPanelWidth]; tokens past num_tokens get any value
};
using AmxLogits = void (*)(const AmxArgs& args);

// Each of these is defined only if the build has the instruction set.
extern const SimdOps kAvx2Ops;
extern const SimdOps kAvx512Ops;
void amx_logits(const AmxArgs& args);

}  // namespace moebius::router
