// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What one instruction set contributes to the CPU router: a table of plain functions.
// Why nothing but declarations here: files compiled for an instruction set share no inline
// functions with others, or the linker might keep a copy that other machines cannot execute.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moebius::router {

inline constexpr int kPanelWidth = 16;    // experts per panel
inline constexpr int kPanelRow = 32;      // elements of two consecutive h: a row of a panel
inline constexpr int kChainDepth = 32;    // h per pair of chains, see ref.h
inline constexpr int kMaxTileRows = 6;    // tokens per tile
inline constexpr int kMaxTilePanels = 4;  // panels per tile

enum class FloatType : int { kF32, kF16, kBF16 };

// A panel is [depth / 2, kPanelRow]; the row of h and h + 1 is, for bf16, 16 pairs of one expert's
// two elements, else 16 elements of h, then 16 of h + 1.
struct TileArgs {
  const float* x;  // [rows, depth], rows x_stride elements apart
  int64_t x_stride;
  int rows;            // 1..kMaxTileRows
  const void* panels;  // num_panels panels of `type`
  FloatType type;
  int64_t panel_stride;  // elements between panels
  int num_panels;        // 1..kMaxTilePanels
  int64_t depth;         // a multiple of kChainDepth
  float* out;            // [num_panels, rows, kPanelWidth]
};

struct SimdOps {
  // out[0, n) = the n elements at `in` as f32.
  void (*widen)(const void* in, FloatType type, int64_t n, float* out);
  // out[p, r, lane] += x[r, h] * panels[p, h, lane] over h in the order of ref.h.
  void (*tile)(const TileArgs& args);
  // score() of scoring.h bit for bit, on rows padded with -inf.  REQUIRES: n % 16 == 0.
  void (*softmax)(float* s, int64_t n);
  void (*sigmoid)(float* s, int64_t n);
  // ids of the k best keys above -inf, best first, ties to the lower id; returns how many there
  // are. Overwrites the chosen keys.  REQUIRES: n % 16 == 0, n > 0, no NaN.
  int64_t (*topk)(float* keys, int64_t n, int64_t k, int32_t* ids);
};

inline constexpr int kAmxTokens = 32;

// A block of logits by AMX.
struct AmxArgs {
  const uint16_t* x;  // bf16 [num_tokens, depth], rows x_stride elements apart
  int64_t x_stride;
  int num_tokens;      // 1..kAmxTokens
  const void* panels;  // num_panels panels of bf16
  int64_t panel_stride;
  int num_panels;
  int64_t depth;  // panels are filled up with zeros to a multiple of kChainDepth
  float* out;     // [num_panels, kAmxTokens, kPanelWidth]; tokens past num_tokens: anything
};
using AmxLogits = void (*)(const AmxArgs& args);

// Defined where the build has the instruction set.
extern const SimdOps kAvx2Ops;
extern const SimdOps kAvx512Ops;
void amx_logits(const AmxArgs& args);

}  // namespace moebius::router
