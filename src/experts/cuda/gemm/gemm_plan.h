// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// GemmPlan: which kernel multiplies the rows of the experts on a GPU, and how it reads the weights.
// choose_gemm() is the only place that decides this; experts, `moebius plan`, logs and MOEBIUS_GEMM
// go by it.  A GEMM is described by facts alone, so that it can be planned before any memory
// exists, and on a machine without a GPU.
// Letters: G groups (local experts), M rows, N, K.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "moebius/device.h"
#include "moebius/dtype.h"
#include "moebius/experts.h"
#include "moebius/quant_config.h"
#include "moebius/quantize.h"
#include "quant/scale_grid.h"

namespace moebius::cuda {

enum class Multiplier : uint8_t {
  kSm90,     // TMA and wgmma: bf16, fp8 by 1 x 128 and 128 x 128, int8; decoded weights as bf16
  kFewRows,  // rows in bf16, codes of 4 and 8 bits, which are decoded in registers
  kMma,      // operands whose codes bf16, f16 or int8 hold exactly, of any sizes
  kGeneral,  // any operands: f32 products of the values that they stand for
};
std::string_view name(Multiplier multiplier);
// What MOEBIUS_GEMM asks for; throws InvalidArgument for a name that is none of the above.
std::optional<Multiplier> forced_multiplier();

// What shares a scale of an operand's rows.
enum class RowScales : uint8_t { kNone, kAll, kPerGroup, kPerRow };

// Alignments are of addresses, in bytes, and 16 at most: scratch and weights of our own have that.
struct RowFacts {
  DType dtype = DType::kBF16;  // as the GEMM reads them
  RowScales scales = RowScales::kNone;
  int64_t block = 0;  // columns per scale of kPerRow; 0: all
  bool divides = false;
};

struct WeightFacts {
  int64_t num_groups = 0;  // G
  int64_t n = 0;
  int64_t k = 0;
  int64_t gate_rows = 0;  // see dequantize_weight_rows
  DType dtype = DType::kBF16;
  std::optional<QuantFormat> format = std::nullopt;  // nullopt: plain, and the rest means nothing
  std::optional<GroupShape> shape = std::nullopt;
  quant::ScaleGrid grid = {};
  DType scale_dtype = DType::kF32;
  int scale_dims = 0;
  int64_t num_scales = 0;
  bool has_zero_point = false;
  int alignment = 16;
  int scale_alignment = 16;
  int bias_alignment = 16;
};

struct GemmDesc {
  RowFacts rows;
  WeightFacts weights;
  DType out = DType::kBF16;
  // Results are not rounded to 16 bits, here or later: not by fp8 tensor cores, then, which keep 14
  // bits of a sum.
  bool keeps_f32 = false;
  // The GEMM should store activated columns, in the codes of `codes` where that is set.
  std::optional<ActivationSpec> activation = std::nullopt;
  std::optional<QuantizeSpec> codes = std::nullopt;
  bool may_decode = true;  // there is room for decoded weights
  // That room was given because decoding pays, so it does not depend on rows any more.
  bool must_decode = false;
  std::optional<Multiplier> forced = std::nullopt;
  // What only a call knows; the defaults fit every kernel.
  int64_t num_rows = 1;      // of the operand
  bool by_index = false;     // rows are told by an index
  int64_t first_column = 0;  // of those to compute
  int64_t num_columns = 0;   // 0: all
  int rows_alignment = 16;
  int out_alignment = 16;
};

// Rows of a tile of kFewRows for so many per group: more than the mean, since codes are read and
// decoded once per tile, and groups rarely have the mean.
constexpr int few_rows_tile(int64_t mean) {
  return mean <= 8 ? 16 : mean <= 20 ? 32 : mean <= 36 ? 48 : 64;
}

struct GemmPlan {
  Multiplier multiplier = Multiplier::kGeneral;
  // Rows that a tile of kFewRows has.  Those of kSm90 follow from the rows of each group, which the
  // device counts: whole tiles, and small ones with swapped operands for what is left (schedule.h).
  int tile_rows = 0;
  bool activates = false;  // it stores activated columns
  // Elements of bf16 scratch in which weights are decoded, some groups at a time; 0: they are read
  // in their codes.
  int64_t decoded_elements = 0;
  // Rows of all groups together from which weights in codes are decoded; 0: that does not depend
  // on rows.
  int64_t decodes_from = 0;
  std::string_view reason;  // why the faster kernels refuse; empty: there is none

  bool decodes() const { return decoded_elements > 0; }
  bool takes_index() const { return multiplier == Multiplier::kSm90; }
  // Some columns can be computed alone.
  bool takes_columns() const { return multiplier == Multiplier::kSm90 && !decodes(); }
};

// More rows than any threshold.
inline constexpr int64_t kManyRows = std::numeric_limits<int64_t>::max();

// Plans for as many rows as are to be expected of all groups together.  Pure.  Throws Unsupported
// where desc.forced refuses.
GemmPlan choose_gemm(const GemmDesc& desc, const CudaDeviceInfo& gpu, int64_t expected_rows);
// One line for logs: "16 x 1536 x 2048: sm90, of decoded weights; weights are decoded from 2816 rows on".
std::string to_string(const GemmPlan& plan, const GemmDesc& desc);

// Whether bf16 holds every element exactly (but for its subnormals), apart from a factor of its
// column or of at least 32 neighbours in it: mx and nvfp4 formats, and others whose scales are
// shared by as many.
bool can_decode(const WeightFacts& weights);
// Blocks of K with factors of their own; 0: the factor is the column's.  REQUIRES: can_decode().
int64_t decoded_blocks(const WeightFacts& weights);
// Elements of GemmPlan::decoded_elements for each of the groups that there is room for.
int64_t decoded_group_elements(const WeightFacts& weights);
// Whether codes of rows in fp8 are better told in bf16: fp8 tensor cores keep 14 bits of a sum, and
// only scales of blocks end their sums early enough.
bool wants_bf16_codes(const WeightFacts& weights, const CudaDeviceInfo& gpu);

// fp8 rows by 1 x 128 and weights by 128 x 128, as Multiplier::kSm90 takes them.
bool has_block_scales(const GemmDesc& desc);

// How Multiplier::kMma multiplies.
struct MmaPlan {
  enum class Kind : uint8_t { kNone, kBf16, kF16, kS8 };
  Kind kind = Kind::kNone;  // kNone: the operands have no exact place on the tensor cores
  int step = 0;             // columns of K at a time
  int segment = 0;          // columns that share scales on both sides; 0: no whole steps
  // Elements hold their block scales with their codes: powers of two in bf16's range of exponents,
  // and e4m3 times e2m1.
  bool folds = false;
};
MmaPlan plan_mma(const GemmDesc& desc);

}  // namespace moebius::cuda
