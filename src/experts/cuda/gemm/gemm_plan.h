// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// GemmPlan: which kernel multiplies the rows of the experts on a GPU, and how it reads the weights.
// choose_gemm() is the only place that decides this; experts, `moebius plan`, logs and MOEBIUS_GEMM
// follow it.  A GEMM is described by facts alone, so that it can be planned before any memory
// exists, and on a machine without a GPU. Letters: G groups (local experts), M rows, N, K.
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
  kThin,     // the fewest rows: in bf16 by weights in bf16, or by codes of 4 bits
  kSm90,     // TMA and wgmma: bf16, f16, fp8 (Fp8Scales), int8; decoded weights as bf16 or f16
  kFewRows,  // rows in bf16 or f16, codes of 4 and 8 bits, which are decoded in registers
  kMma,      // operands whose codes bf16, f16 or int8 hold exactly, of any sizes
  kGeneral,  // any operands: f32 products of the values that they stand for
};
std::string_view name(Multiplier multiplier);
// The kernel that MOEBIUS_GEMM names.  Throws InvalidArgument for a name that is none of the above.
std::optional<Multiplier> forced_multiplier();

// Says what shares a scale of an operand's rows.
enum class RowScales : uint8_t { kNone, kAll, kPerGroup, kPerRow };

// Says which scales rows and weights have where kSm90 multiplies codes of fp8 on both sides.
enum class Fp8Scales : uint8_t {
  kNone,            // it does not
  kBlocks,          // rows by 1 x 128, weights by 128 x 128
  kRowsAndColumns,  // at most one each for a row and for a column of the result
};

// Alignments are of addresses, in bytes, and 16 at most.  Our own scratch and weights have 16.
struct RowFacts {
  DType dtype = DType::kBF16;  // in which the GEMM reads the rows
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

// More rows than any threshold.
inline constexpr int64_t kManyRows = std::numeric_limits<int64_t>::max();

struct GemmDesc {
  RowFacts rows;
  WeightFacts weights;
  DType out = DType::kBF16;
  // Results are not rounded to 16 bits, here or later.  So fp8 tensor cores, which keep 14 bits of
  // a sum, are not used.
  bool keeps_f32 = false;
  // The GEMM should store activated columns, in the codes of `codes` where that is set.  Where it
  // cannot store codes, it may store the columns in bf16, to be quantized by another kernel.
  std::optional<ActivationSpec> activation = std::nullopt;
  std::optional<QuantizeSpec> codes = std::nullopt;
  bool has_static_codes = false;  // the scale of codes is known before, one for a group or for all
  bool may_decode = true;         // there is room for decoded weights
  // That room was given because decoding pays, so decoding does not depend on rows any more.
  bool must_decode = false;
  // Weights of this call were fetched to L2 ahead (GemmPlan::fetches_ahead).
  bool is_fetched = false;
  std::optional<Multiplier> forced = std::nullopt;
  // Whether weights are decoded ahead where they can be; nullopt: where that pays.
  std::optional<bool> decodes_ahead = std::nullopt;
  // kThin is not chosen for more rows by codes.  Kernels of kFewRows take whole SMs, and those of
  // kThin have blocks on all.  So GEMMs of experts that run beside others change over at one token.
  int64_t most_thin_code_rows = kManyRows;
  // Only a call knows what follows; the defaults suit every kernel.
  int64_t num_rows = 1;      // of the operand
  bool by_index = false;     // an index names the rows
  int64_t first_column = 0;  // the first column to compute
  int64_t num_columns = 0;   // 0: all
  int rows_alignment = 16;
  int out_alignment = 16;
};

// Says whether large tiles of kFewRows have elements of f16 for int4, with their scales in them:
// zero points are 8, and scales are of whole steps.  f16 holds products with scales in bf16
// exactly.  Those with others are rounded to 11 bits, where results, here or later, are rounded to
// the 8 of bf16.
bool folds_int4(const GemmDesc& desc);
// Returns the rows of a tile of kFewRows for weights in codes, the type of the rows and a mean
// number of rows per group.  They are more than the mean, since codes are read and decoded once per
// tile, and groups rarely have just the mean.  `folds`: folds_int4().
int few_rows_tile(const WeightFacts& w, DType rows, int64_t mean, bool folds = false);
inline constexpr int kLargeFewRowsTile = 256;
inline constexpr int kMediumFewRowsTile = 192;
inline constexpr int kSmallFewRowsTile = 64;  // the largest that all formats have
inline constexpr int kFewRowsStepBytes = 64;  // of a column's codes in a step along k

// Tiles of kThin have kThinRows rows, and two where weights are int4.  It takes K of at least
// kThinDepth elements, which its stages hold.  It is chosen below a mean of kThinMeanRows per
// group.
inline constexpr int kThinRows = 8;
inline constexpr int kThinDepth = 320;
inline constexpr int64_t kThinMeanRows = 2;
// With weights in codes it takes K above kThinCodeDepth, of e2m1 in multiples of 64.  It is chosen
// for one row, and where groups have so few rows on average that it saves more by the kernels
// around it than kFewRows does by reading codes once for more rows (most_thin_eighths() of
// gemm_plan.cc).  The codes of groups that have rows must be at most kThinCodeBytes.  That is
// halved where kThin does not activate, as in GEMM2, whose weights are half as large, and where
// rows in f16 meet codes of e2m1.  Where K is above kThinLongDepth it is halved for mxfp4, and
// twice for int4, since long items leave warps idle in the last round.  A warp has all of K, so
// kThinCodeMostDepth limits K.  Both depths are limits for the experts' other GEMM, too.
inline constexpr int kThinCodeDepth = 256;
inline constexpr int64_t kThinCodeMostDepth = 8192;
inline constexpr int64_t kThinCodeBytes = int64_t{7} << 26;
inline constexpr int64_t kThinLongDepth = 4096;

struct GemmPlan {
  Multiplier multiplier = Multiplier::kGeneral;
  // The rows of a tile of kFewRows.  Tiles of kSm90 follow from the rows of each group, which the
  // device counts: whole tiles, and small ones by swap-AB for what is left (schedule.h).
  int tile_rows = 0;
  // For kFewRows: its tiles are large, and elements of int4 hold their scales (folds_int4()).
  bool folds_int4 = false;
  Fp8Scales fp8 = Fp8Scales::kNone;
  bool activates = false;  // it stores activated columns
  bool quantizes = false;  // it stores them in the codes of GemmDesc::codes
  // Elements of scratch in which weights are decoded to the type of the rows, bf16 or f16, some
  // groups at a time; 0: the kernel reads codes.
  int64_t decoded_elements = 0;
  // The kernel decodes weights itself, while it multiplies by those that it has decoded before. Its
  // warps that would copy rows by an index decode instead.  There are such kernels for bf16 alone.
  bool decodes_ahead = false;
  // The number of rows of all groups from which weights in codes are decoded; 0: that does not
  // depend on rows.
  int64_t decodes_from = 0;
  // For kThin and kSm90: lines of weights are the first to make room in L2, so that those that were
  // fetched ahead, or rows, stay.  By codes kThin always does so.
  bool evicts_weights = false;
  // It pays that weights are fetched to L2 before the sizes of groups are known, if something else
  // runs until then (SlotOrder::first_weights).
  bool fetches_ahead = false;
  std::string_view reason;  // why the faster kernels refuse; empty: there is none

  bool decodes() const { return decoded_elements > 0; }
  bool takes_index() const {
    return takes_arrivals() || multiplier == Multiplier::kThin ||
           multiplier == Multiplier::kFewRows;
  }
  // Whether rows with an index may still be on their way.
  bool takes_arrivals() const { return multiplier == Multiplier::kSm90 && !decodes_ahead; }
  // Whether it can activate rows as it reads them.
  bool takes_unactivated() const { return multiplier == Multiplier::kFewRows; }
  // Whether it can quantize rows as it reads them: to the format of the weights, which is nvfp4,
  // mxfp4 or mxfp8.
  bool takes_uncoded(std::optional<QuantFormat> weights, const QuantizeSpec& rows) const {
    return multiplier == Multiplier::kFewRows && rows.format == weights &&
           (weights == QuantFormat::kNvfp4 || weights == QuantFormat::kMxfp4 ||
            weights == QuantFormat::kMxfp8);
  }
  // Whether some columns can be computed alone.
  bool takes_columns() const { return multiplier == Multiplier::kSm90 && !decodes(); }
};

// A group of so many elements is large: kernels decode large groups ahead.
inline constexpr int64_t kLargeGroup = int64_t{8} << 20;

// The mean number of rows per group from which weights are decoded to memory, where kFewRows takes
// them, too.  kFewRows is faster where it has large tiles, in large groups, as its items are
// longer, and with fewer bits to decode.  Products of decoded weights are slower if blocks of K
// have scales of their own.  The times are in docs/performance/gpu_experts.md, "Few rows".
int64_t least_decoded_rows(const WeightFacts& w, DType rows);

// A kernel decodes ahead where there is room for so many groups (with two it is slower than to
// decode first), and it pays for large groups from a mean of so many rows on.
inline constexpr int64_t kLeastDecodedSlots = 3;
inline constexpr int64_t kDecodedAheadRows = 320;

// With one row for so many groups or more, it pays that weights make room in L2: a token of
// Qwen3-30B-A3B took 42 instead of 46 us, but 16 tokens 230 instead of 226.
inline constexpr int64_t kEvictingGroups = 8;

// Plain weights are fetched ahead where those of all groups are more than L2 holds and at most so
// many bytes, since reading on with evicts_weights takes 2 % longer and the fetch saves the same
// time whatever there is to read; from one row for so many groups on, since with fewer most of what
// is fetched is not used; and up to a mean of so many rows per group.  The bytes that are fetched
// stay in an L2 of 50 MB together.
inline constexpr int64_t kFetchedByRouter = int64_t{16} << 20;
inline constexpr int64_t kFetchedByGemm1 = int64_t{24} << 20;
inline constexpr int64_t kLeastFetchedFrom = int64_t{1} << 26;
inline constexpr int64_t kMostFetchedFrom = int64_t{1} << 30;
inline constexpr int64_t kFetchingGroups = 4;
inline constexpr int64_t kMostFetchedRows = 64;

// Says whether experts keep the codes of such weights packed (dequant/pack_codes.h) where the
// memory is their own.  They do so where kernels of few rows decode e2m1 to bf16.
bool packs_codes(const GemmDesc& desc, const CudaDeviceInfo& gpu);
// Says whether calls with many rows multiply as folds_int4() says, so experts find the norms of the
// scales once (dequant/scale_norms.h).
bool needs_scale_norms(const GemmDesc& desc, const CudaDeviceInfo& gpu);
// Plans for as many rows as are expected of all groups together.  A pure function.  Throws
// Unsupported where desc.forced names a kernel that refuses.
GemmPlan choose_gemm(const GemmDesc& desc, const CudaDeviceInfo& gpu, int64_t expected_rows);
// One line for logs: "16 x 1536 x 2048: sm90, of decoded weights; weights are decoded from 2816
// rows on".
std::string to_string(const GemmPlan& plan, const GemmDesc& desc);

// Whether `dtype`, bf16 or f16, holds every element exactly (except subnormals of bf16), apart from
// a factor of its column or of at least 32 neighbours in the column.  That is so for mx and nvfp4
// formats, and for others whose scales are shared by at least 32.
bool can_decode(const WeightFacts& weights, DType dtype);
// The number of blocks of K with factors of their own; 0: the factor is the column's.
// REQUIRES: can_decode().
int64_t decoded_blocks(const WeightFacts& weights, DType dtype);
// The elements of GemmPlan::decoded_elements that each group takes.
int64_t decoded_group_elements(const WeightFacts& weights, DType dtype);
// The i32 in that scratch by which a kernel that decodes ahead counts, see GroupedGemm.
constexpr int64_t num_decode_counters(int64_t num_groups) {
  return 2 + 2 * num_groups;
}
// The groups for whose weights `elements` of bf16 scratch have room where the kernel decodes ahead:
// beside them are the scales of all groups, and counters.  REQUIRES: can_decode().
int64_t decoded_ahead_slots(const WeightFacts& weights, int64_t elements);
// Whether fp8 codes of rows are better stored as bf16, since the weights have scales with which fp8
// tensor cores do not multiply them, or since another kernel is forced.
bool wants_bf16_codes(const WeightFacts& weights,
                      const CudaDeviceInfo& gpu,
                      std::optional<Multiplier> forced);

// The scales of operands in fp8 that Multiplier::kSm90 takes as codes; kNone for all others.
Fp8Scales fp8_scales(const GemmDesc& desc);

// Says how Multiplier::kMma multiplies.
struct MmaPlan {
  enum class Kind : uint8_t { kNone, kBf16, kF16, kS8 };
  Kind kind = Kind::kNone;  // kNone: the operands have no exact place on the tensor cores
  int step = 0;             // columns of K at a time
  int segment = 0;          // columns that share scales on both sides; 0: no whole steps
  // Elements hold their block scales with their codes, exactly: powers of two within bf16's
  // exponents, and e4m3 times e2m1.
  bool folds = false;
};
MmaPlan plan_mma(const GemmDesc& desc);

}  // namespace moebius::cuda
