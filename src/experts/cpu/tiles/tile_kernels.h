// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Inner loops over packed operands, one set per instruction set.  They run on the calling thread
// alone.
//
// All operands are cut into tiles of 16 rows of 64 bytes, as AMX multiplies them (Intel SDM,
// TDPBF16PS and TDPBSSD); other instruction sets read the same bytes.  A *step* of the reduced
// dimension k is 32 values, or 64 of i8.
//
//   panel   32 activation rows in lines of 64 bytes of k, one or (f32) two lines per step: each
//           line is two tiles [16 rows][64 bytes]
//   unit    32 weight rows (a column block of C) times one step: two tiles, each [16 groups of k]
//           [16 columns][2 bf16 or f16, or 4 i8], or (f32) [32 k][16 columns]; or codes that decode
//           to such tiles
//   C       per panel four tiles [16][16] of f32 (i32 for i8): (rows 0-15, columns 0-15),
//           (rows 0-15, columns 16-31), (rows 16-31, columns 0-15), (rows 16-31, columns 16-31)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "moebius/dtype.h"
#include "moebius/experts.h"

namespace moebius::cpu {

inline constexpr int64_t kTileRows = 16;
inline constexpr int64_t kTileColumns = 16;
inline constexpr int64_t kTileRowBytes = 64;
inline constexpr int64_t kTileBytes = kTileRows * kTileRowBytes;
inline constexpr int64_t kPanelRows = 2 * kTileRows;
inline constexpr int64_t kBlockColumns = 32;
// The bytes of a line of a panel, and of a unit of bf16.
inline constexpr int64_t kStepBytes = 2 * kTileBytes;
inline constexpr int64_t kTileFloats = kTileRows * kTileColumns;
inline constexpr int64_t kPanelFloats = kPanelRows * kBlockColumns;

// The values that panels hold, and that weights are multiplied as.
enum class Operand : uint8_t { kBF16, kI8, kF32 };

inline constexpr int64_t step_values(Operand operand) {
  return operand == Operand::kI8 ? 64 : 32;
}
inline constexpr int64_t step_lines(Operand operand) {
  return operand == Operand::kF32 ? 2 : 1;
}
inline constexpr int64_t value_bytes(Operand operand) {
  return operand == Operand::kI8 ? 1 : operand == Operand::kF32 ? 4 : 2;
}

// The content of a unit.
enum class TileCode : uint8_t {
  kBF16,      // 2048 bytes, the tiles themselves
  kF16,       // 2048 bytes, the tiles themselves; Operand::kF32 only
  kF32,       // 4096 bytes, the tiles themselves; Operand::kF32 only
  kI8,        // 2048 bytes, the tiles themselves, 64 values of k; C is i32
  kF8E4M3,    // 1024 bytes, see Pairs
  kI8AsBF16,  // 1024 bytes, see Pairs; value = code + 128 - zero point (128 when there is none)
  kInt4,      // 512 bytes, see Nibbles; value = code - zero point (8 when there is none)
  kMxfp4,     // 512 bytes, see Nibbles; and 32 step scales e8m0, one per column
  kNvfp4,     // 512 bytes, see Nibbles; and 64 step scales e4m3: 16 k of 32 columns, then 16 more
};
// Pairs: 64 bytes hold rows 2b and 2b + 1 of a tile's 16 rows.  kF8E4M3 has 32 little-endian words:
// their upper bytes are the codes of row 2b + 1, their lower bytes those of row 2b as sign, lowest
// four bits, other three bits.  kI8AsBF16 has code + 128, 8 elements of row 2b and of row 2b + 1 by
// turns.
// Nibbles: 64 bytes hold rows 4b to 4b + 3 of a tile's 16 rows.  They are 32 little-endian words:
// word j holds element j of those four rows, from its lowest nibble up.

// For bf16 products codes decode to what costs least, which is a power of two times their values:
// 2^-112 for kNvfp4 and kI8AsBF16, where the bits of an f16 are moved to where bf16 has them, and
// 2^-8 for kF8E4M3.  Scales make up for it.  Of 2^-112 the rows make up for half, so that no sum is
// subnormal; sums stay below 2^71.  For f32 products codes decode to their values.
inline constexpr float row_factor(TileCode code, Operand operand) {
  const bool is_far = code == TileCode::kNvfp4 || code == TileCode::kI8AsBF16;
  return is_far && operand == Operand::kBF16 ? 0x1p56f : 1.0f;
}
// The factor of the scales of columns.  The kernels multiply the scales of groups with it
// themselves.
inline constexpr float scale_factor(TileCode code, Operand operand) {
  return code == TileCode::kF8E4M3 && operand == Operand::kBF16 ? 0x1p8f
                                                                : row_factor(code, operand);
}

inline constexpr int64_t unit_bytes(TileCode code) {
  switch (code) {
    case TileCode::kBF16:
    case TileCode::kF16:
    case TileCode::kI8:
      return kStepBytes;
    case TileCode::kF32:
      return 2 * kStepBytes;
    case TileCode::kF8E4M3:
    case TileCode::kI8AsBF16:
      return kStepBytes / 2;
    default:
      return kStepBytes / 4;
  }
}
inline constexpr int64_t step_scale_bytes(TileCode code) {
  return code == TileCode::kMxfp4   ? kBlockColumns
         : code == TileCode::kNvfp4 ? 2 * kBlockColumns
                                    : 0;
}

// Units may be read up to this many bytes past their end.
inline constexpr int64_t kReadPast = 3;

// The least and the largest of some exponents.
struct ExponentRange {
  int least = 0;
  int most = 255;
};

// The product of the rows of one item and one column block.
struct TileGemm {
  const std::byte* a = nullptr;  // panels, `steps` each; rows past `rows` hold anything
  int64_t rows = 0;              // > 0
  // These are the exponents of those rows (see TileKernels::exponents), or any where nobody asked.
  ExponentRange exponents;
  int64_t steps = 0;  // > 0
  TileCode code = TileCode::kBF16;
  const std::byte* units = nullptr;        // [steps], and kReadPast more bytes
  const std::byte* step_scales = nullptr;  // [steps], where the code has them
  ExponentRange scale_exponents;           // the codes among them, kMxfp4 only

  // [steps], kF8E4M3 only: bit 8 t + b is set where some code of rows 2b and 2b + 1 of tile t is
  // NaN, and for bf16 products also where it is zero or subnormal.
  const uint16_t* others = nullptr;

  // Steps of a group of k with a scale of its own; 0: there are no groups.  With groups, C = sum
  // over groups of (product of codes) * scale of the column * scale of the row, in f32.
  int64_t group_steps = 0;
  DType scale_dtype = DType::kF32;          // f32, bf16, f16 or e8m0
  const std::byte* group_scales = nullptr;  // [groups][32]
  const uint8_t* zero_points = nullptr;     // [groups][32], optional; kInt4, and kI8AsBF16 in f32
  const float* row_scales = nullptr;        // [rows][row_groups], optional
  int64_t row_groups = 0;

  float* c = nullptr;  // [panels of rows][kPanelFloats], scratch

  // The data that is read after this block (codes, scales), and last a part of what is read later.
  std::array<std::span<const std::byte>, 4> next;

  // Codes are read in order from this block's on to codes_end, and then most likely from
  // codes_after on.  Null: nobody knows.
  const std::byte* codes_end = nullptr;
  const std::byte* codes_after = nullptr;

  // How many bytes before a code is read its line is fetched to L1, where few rows are multiplied.
  // A fetch past the end of the weights does no harm.
  int64_t fetch_ahead = 4096;
  // AVX-512 kernels then fetch to L2 from some pages by turns instead, and to L1 shortly before.
  bool fetch_by_pages = false;
  // AVX-512 kernels of bf16 products then multiply by f32 where that is shorter and has their bits.
  bool f32_products = false;
};

// Whether sums of kMxfp4 stay finite, as they are and divided by any of their scales.  They are
// less than 2^(largest exponent - 126) * 2^(largest scale - 127) * 2^3 (of the largest code) * 2^17
// (of the length of k).  Divided, they are at most 2^(127 - least scale) times and at least 2^(127
// - largest scale) times as large.
inline bool scaled_sums_are_finite(const TileGemm& g) {
  const auto [least_scale, most_scale] = g.scale_exponents;
  const int spread = most_scale - least_scale;
  return g.steps <= 1 << 12 && spread <= 100 && g.exponents.most + spread <= 232 &&
         g.exponents.most + most_scale <= 359;
}

// Says what becomes of a block of C, row by row: value = sum * row scale * column scale + bias +
// addend, then the activation or the output, each rounded to `dtype`.  Kernels with bf16 products
// know only bf16.
struct TileEpilogue {
  DType dtype = DType::kBF16;
  bool integers = false;              // C holds i32
  const float* row_scales = nullptr;  // [rows] with stride scale_stride, or null: 1
  int64_t scale_stride = 1;
  const float* column_scales = nullptr;  // [32] or null: 1
  const float* bias = nullptr;           // [32] or null: 0
  const float* addend = nullptr;         // [rows][32] or null: 0

  // GEMM1 sets it; results are rounded at each rounding point of experts.h.  When gated, columns
  // 0-15 are gate and 16-31 up, and give 16 results per row; else there are 32.
  const ActivationSpec* activation = nullptr;
  bool as_f32 = false;      // results are stored as f32, not as `dtype`
  float act_factor = 1.0f;  // a power of two that results are multiplied with
  std::byte* act = nullptr;
  int64_t panel_stride = 0;  // bytes
  int64_t tile_stride = 0;
  int64_t row_stride = 0;
  int64_t half_stride = 0;  // from a row's results 0-15 to 16-31

  // Without an activation (GEMM2) the first `columns` values of row r go to column `column` of
  // out[r].  With weights [rows] they are multiplied by weights[r], rounded again and added to +0,
  // as the first term of a sum is.  With past_caches they go straight to memory, which suits what
  // is not read soon; they must then be whole aligned lines of 64 bytes.
  // REQUIRES: a weight that is NaN has no bit set in its lower half.
  std::byte* const* out = nullptr;
  const float* weights = nullptr;
  int64_t column = 0;
  int64_t columns = kBlockColumns;
  bool past_caches = false;

  // The same epilogue for the rows of panel p, counted from the panel's first row.
  TileEpilogue of_panel(int64_t p) const {
    TileEpilogue e = *this;
    const int64_t row = p * kPanelRows;
    e.row_scales = row_scales != nullptr ? row_scales + row * scale_stride : nullptr;
    e.addend = addend != nullptr ? addend + row * kBlockColumns : nullptr;
    e.act = act != nullptr ? act + p * panel_stride : nullptr;
    e.out = out != nullptr ? out + row : nullptr;
    e.weights = weights != nullptr ? weights + row : nullptr;
    return e;
  }

  std::byte* act_row(int64_t r) const {
    return act + r / kPanelRows * panel_stride + r / kTileRows % 2 * tile_stride +
           r % kTileRows * row_stride;
  }
};

// A block of C, or a panel of one, that is complete, but whose rows from `begin` on have yet to go
// through its epilogue.  With an activation `begin` is even.  Before the first block there is no C.
struct TileRest {
  TileEpilogue epilogue;
  const float* c = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
};

struct TileKernels {
  std::string_view name;
  Operand operand;  // beside i8, which all multiply: kBF16 or kF32
  // Multiplies one block.  Finishes `rest`, which is of the block before, and may leave this block
  // in it.  REQUIRES: rest has another C; all blocks up to finish() have as many rows.
  void (*multiply)(const TileGemm&, const TileEpilogue&, TileRest& rest);
  // Called after the last block, on the same thread: finishes what is in `rest` and gives back what
  // the kernels hold between blocks.  Its stores are visible to any thread that sees the task done.
  void (*finish)(TileRest& rest);
  // The exponents, as f32 has them, of the values other than 0 in the rows of panels of `operand`:
  // 1 to 254 of normal numbers, 0 of subnormal ones, 255 of infinity and NaN; the least is 256
  // where all are 0.  Null: the kernels do not need them.
  ExponentRange (*exponents)(const std::byte* panels, int64_t rows, int64_t steps) = nullptr;
};

// Sets with f32 products.  float_tiles() is the one with the widest vectors that this processor
// has, or the one that MOEBIUS_CPU_VECTORS names.  Throws InvalidArgument for an unknown name and
// Unsupported for a set that cannot run here.
const TileKernels& float_tiles();
const TileKernels& plain_tiles();
#ifdef MOEBIUS_HAVE_AVX2
// REQUIRES: cpu_features().avx2.
const TileKernels& avx2_tiles();
#endif
#ifdef MOEBIUS_HAVE_AVX512_VNNI
// REQUIRES: cpu_features().avx512 and avx512_vnni.
const TileKernels& vnni_tiles();
#endif
// Sets with bf16 products.
#ifdef MOEBIUS_HAVE_AVX512_VBMI
// REQUIRES: can_run_avx512_tiles(): AVX-512 BF16, VNNI and VBMI.
bool can_run_avx512_tiles();
const TileKernels& avx512_tiles();
#endif
#ifdef MOEBIUS_HAVE_AMX
// REQUIRES: can_run_amx_tiles(): AMX, what AVX-512 tiles require, and AVX-512 FP16.
bool can_run_amx_tiles();
const TileKernels& amx_tiles();
#endif

}  // namespace moebius::cpu
