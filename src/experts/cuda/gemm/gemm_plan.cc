// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/gemm/gemm_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/ceil_div.h"
#include "experts/cuda/activation/activation.h"
#include "experts/cuda/gemm/gemm_refusals.h"
#include "experts/int8_depth.h"
#include "moebius/error.h"
#include "moebius/settings.h"
#include "quant/decoded_room.h"
#include "quant/group_rule.h"
#include "quant/row_kernels.h"

namespace moebius::cuda {

namespace {

constexpr std::array kNames{"thin", "sm90", "few_rows", "mma", "general"};
constexpr int64_t kVector = 8;  // elements that kernels read at once
constexpr int64_t kDecodedElementBytes = 2;

// Says whether kFewRows has tiles larger than kSmallFewRowsTile for these weights: where scales go
// into the elements (few_rows::Decoding::kFolds), or change only between steps of k and are not in
// e8m0.
bool has_large_tiles(const WeightFacts& w, DType rows) {
  if (w.scale_dtype == DType::kE8M0) {
    return rows == DType::kBF16;
  }
  const int step = kFewRowsStepBytes * 8 / quant::code_bits(quant::code_of(*w.format));
  return w.scale_dtype == DType::kF8E4M3 || w.grid.num_cols == 1 || w.grid.group_cols >= step;
}

// Whether kThin activates by codes.  Rows in fp8 and int8 are coded by the kernel that activates.
bool thin_activates(const GemmDesc& desc) {
  return desc.activation && is_plain_silu(*desc.activation) && desc.rows.dtype == DType::kBF16 &&
         (desc.codes ? quant::scaled_codes_fit(desc.codes->format, DType::kBF16)
                     : desc.out == DType::kBF16);
}

bool is_e2m1(const WeightFacts& w) {
  return w.format && quant::code_of(*w.format) == quant::Code::kE2M1;
}

// Whether codes of e2m1 may be packed for these rows (packed_e2m1.cuh).
bool takes_packed_codes(const RowFacts& rows) {
  return rows.dtype == DType::kBF16;
}

bool meets_unpacked_e2m1(const GemmDesc& desc) {
  return is_e2m1(desc.weights) && !takes_packed_codes(desc.rows);
}

// Returns up to how many eighths of a row per group kThin is as fast as kFewRows.
int64_t most_thin_eighths(const GemmDesc& desc) {
  const QuantFormat format = *desc.weights.format;
  return meets_unpacked_e2m1(desc) ? 6 : format == QuantFormat::kInt4 ? 10 : 20;
}

// Returns how often kThinCodeBytes is halved where a warp's items have this K.
int thin_halvings_by_depth(QuantFormat format, int64_t depth) {
  return depth <= kThinLongDepth         ? 0
         : format == QuantFormat::kInt4  ? 2
         : format == QuantFormat::kMxfp4 ? 1
                                         : 0;
}

bool pays_to_be_thin(const GemmDesc& desc, int64_t expected_rows) {
  const WeightFacts& w = desc.weights;
  if (!w.format) {
    return expected_rows < kThinMeanRows * w.num_groups;
  }
  // One group has shared experts, which go by what is beside them for more than one row.
  const bool has_few_rows =
      expected_rows == 1 ||
      (w.num_groups > 1 && expected_rows <= most_thin_eighths(desc) * w.num_groups / 8);
  const int64_t other_k = w.gate_rows < w.n ? w.n / 2 : w.n;  // of the experts' other GEMM
  const int64_t depth = w.num_groups > 1 ? std::max(w.k, other_k) : w.k;
  if (expected_rows > desc.most_thin_code_rows || !has_few_rows || depth > kThinCodeMostDepth) {
    return false;
  }
  // If each row's group is drawn at random, about 2 G rows / (2 G + rows) of G groups have rows.
  const int64_t twice = 2 * w.num_groups;
  const int64_t group_bytes = w.n * w.k * quant::code_bits(quant::code_of(*w.format)) / 8;
  const int64_t most =
      kThinCodeBytes >> (thin_halvings_by_depth(*w.format, depth) + int{!thin_activates(desc)} +
                         int{meets_unpacked_e2m1(desc)});
  const auto groups =
      static_cast<double>(twice * expected_rows) / static_cast<double>(twice + expected_rows);
  return groups * static_cast<double>(group_bytes) <= static_cast<double>(most);
}

bool may_be_thin(const GemmDesc& desc, int64_t expected_rows) {
  return desc.forced ? *desc.forced == Multiplier::kThin : pays_to_be_thin(desc, expected_rows);
}

bool is_forced_away(const GemmDesc& desc, Multiplier multiplier) {
  return desc.forced && *desc.forced != multiplier;
}

// The number of rows of all groups from which decoding pays.  0: it always does, since no other
// kernel reads the codes as fast, or since it was asked for.
int64_t decodes_from(const GemmDesc& desc, const CudaDeviceInfo& gpu) {
  const bool has_choice = !desc.forced && refusal_of_few_rows(desc, gpu) == nullptr;
  if (!has_choice) {
    return 0;
  }
  const WeightFacts& w = desc.weights;
  return least_decoded_rows(w, desc.rows.dtype) * w.num_groups;
}

bool can_be_decoded(const GemmDesc& desc) {
  const RowFacts& rows = desc.rows;
  const bool takes_scales = rows.scales != RowScales::kPerRow ||
                            (has_one_scale_per_row(rows, desc.weights.k) && !rows.divides);
  return desc.may_decode && !is_forced_away(desc, Multiplier::kSm90) && takes_scales &&
         can_decode(desc.weights, rows.dtype);
}

// Whether sm90 can decode these weights while it multiplies by others.
bool can_decode_ahead(const GemmDesc& desc, const GemmPlan& plan) {
  const WeightFacts& w = desc.weights;
  const quant::Code code = quant::code_of(*w.format);
  const bool has_code = decoded_blocks(w, DType::kBF16) > 0
                            ? code == quant::Code::kU4
                            : code == quant::Code::kE2M1 || code == quant::Code::kI8;
  // The scales of a row's blocks, and those of all rows, are neighbours.
  const bool has_whole_blocks =
      w.grid.num_cols == 1 || (w.grid.group_rows == 1 && w.k % w.grid.group_cols == 0);
  const bool is_bf16 = desc.rows.dtype == DType::kBF16 &&
                       (plan.activates ? !plan.quantizes : desc.out == DType::kBF16);
  return has_code && has_whole_blocks && is_bf16 && !w.has_zero_point &&
         w.n * w.k % quant::kDecodedUnit == 0 && w.num_groups <= quant::kMostDecodedAhead &&
         w.alignment >= 16 && w.scale_alignment >= 16 &&
         decoded_ahead_slots(w, plan.decoded_elements) >= kLeastDecodedSlots;
}

// Whether fetching weights ahead pays for kernels that read them as they lie.
bool pays_to_fetch(const WeightFacts& w, int64_t expected_rows) {
  const int64_t bytes = w.num_groups * w.n * w.k * int64_t{sizeof(BFloat16)};
  return !w.format && bytes >= kLeastFetchedFrom && bytes <= kMostFetchedFrom &&
         kFetchingGroups * expected_rows >= w.num_groups &&
         expected_rows <= kMostFetchedRows * w.num_groups;
}

}  // namespace

bool packs_codes(const GemmDesc& desc, const CudaDeviceInfo& gpu) {
  return is_e2m1(desc.weights) && takes_packed_codes(desc.rows) &&
         refusal_of_few_rows(desc, gpu) == nullptr;
}

bool needs_scale_norms(const GemmDesc& desc, const CudaDeviceInfo& gpu) {
  return folds_int4(desc) && refusal_of_few_rows(desc, gpu) == nullptr;
}

std::string_view name(Multiplier multiplier) {
  return kNames[static_cast<size_t>(multiplier)];
}

std::optional<Multiplier> forced_multiplier() {
  const std::optional<std::string> asked = setting("MOEBIUS_GEMM");
  if (!asked) {
    return std::nullopt;
  }
  const auto* found = std::find(kNames.begin(), kNames.end(), *asked);
  expect(found != kNames.end(), [&] {
    return fmt::format("MOEBIUS_GEMM is {}, expected one of {}", *asked, fmt::join(kNames, ", "));
  });
  return static_cast<Multiplier>(found - kNames.begin());
}

bool folds_int4(const GemmDesc& desc) {
  const WeightFacts& w = desc.weights;
  const bool has_scales =
      w.grid.num_cols == 1 || w.grid.group_cols >= int64_t{kFewRowsStepBytes} * 2;
  const bool is_rounded = desc.rows.dtype == DType::kBF16 && !desc.keeps_f32;
  return w.format == QuantFormat::kInt4 && !w.has_zero_point && has_scales &&
         (w.scale_dtype == DType::kBF16 || is_rounded);
}

int few_rows_tile(const WeightFacts& w, DType rows, int64_t mean, bool folds) {
  constexpr int64_t kMostMediumRows = 176;
  const bool is_large = w.n * w.k >= kLargeGroup;
  const bool scales_sums = decoded_blocks(w, rows) > 0 && !folds;
  const bool has_4_bits = quant::code_bits(quant::code_of(*w.format)) == 4;
  const int64_t least_medium = has_4_bits                ? (scales_sums ? 116 : 80)
                               : is_large || scales_sums ? 72
                                                         : 60;
  if (mean >= least_medium && has_large_tiles(w, rows)) {
    return mean <= kMostMediumRows ? kMediumFewRowsTile : kLargeFewRowsTile;
  }
  return mean <= 8 ? 16 : mean <= 20 ? 32 : mean <= 36 ? 48 : kSmallFewRowsTile;
}

int64_t least_decoded_rows(const WeightFacts& w, DType rows) {
  const bool is_large = w.n * w.k >= kLargeGroup;
  const bool has_4_bits = quant::code_bits(quant::code_of(*w.format)) == 4;
  if (!has_large_tiles(w, rows)) {
    return has_4_bits ? (is_large ? 640 : 512) : (is_large ? 512 : 352);
  }
  if (decoded_blocks(w, rows) > 0) {  // decoded weights have scales of their sums, too
    return is_large || has_4_bits ? 2048 : 1408;
  }
  return is_large ? 1280 : 1088;
}

GemmPlan choose_gemm(const GemmDesc& desc, const CudaDeviceInfo& gpu, int64_t expected_rows) {
  GemmPlan plan;
  plan.evicts_weights =
      desc.is_fetched || expected_rows <= desc.weights.num_groups / kEvictingGroups;
  bool decodes = can_be_decoded(desc) && has_sizes_of_sm90(desc.weights, gpu);
  if (decodes) {
    plan.decodes_from = decodes_from(desc, gpu);
    decodes = desc.must_decode || expected_rows >= plan.decodes_from;
  }
  GemmDesc plain = desc;
  plain.activation = std::nullopt;
  const auto activates = [&](const GemmDesc& wanted) {
    return !is_forced_away(desc, Multiplier::kSm90) &&
           refusal_of_sm90(wanted, gpu, decodes) == nullptr;
  };
  const auto refusal_of = [&](Multiplier multiplier) -> Refusal {
    switch (multiplier) {
      case Multiplier::kThin: {
        const bool has_codes = desc.weights.format && !decodes;
        const Refusal refusal =
            has_codes ? refusal_of_few_rows(plain, gpu) : refusal_of_sm90(plain, gpu, decodes);
        return refusal != nullptr ? refusal
               : has_codes        ? refusal_of_thin_codes(plain)
                                  : refusal_of_thin(desc);
      }
      case Multiplier::kSm90:
        return refusal_of_sm90(plain, gpu, decodes);
      case Multiplier::kFewRows:
        return refusal_of_few_rows(plain, gpu);
      case Multiplier::kMma:
        return refusal_of_mma(plain);
      case Multiplier::kGeneral:
        break;
    }
    return nullptr;
  };
  if (desc.activation) {
    plain.out = DType::kBF16;  // a separate activation reads bf16
    GemmDesc without_codes = desc;
    if (desc.codes) {
      without_codes.codes = std::nullopt;
      without_codes.out = DType::kBF16;  // to be quantized by another kernel
    }
    plan.quantizes = desc.codes && activates(desc);
    plan.activates = plan.quantizes || activates(without_codes);
  }
  if (may_be_thin(desc, expected_rows)) {
    const Refusal refusal = refusal_of(Multiplier::kThin);
    if (refusal == nullptr) {
      plan.multiplier = Multiplier::kThin;
      plan.fetches_ahead = pays_to_fetch(desc.weights, expected_rows);
      plan.activates =
          desc.activation && (desc.weights.format ? thin_activates(desc)
                                                  : refusal_of_sm90(desc, gpu, decodes) == nullptr);
      return plan;
    }
    plan.reason = desc.forced ? refusal : "";
  }
  for (const Multiplier multiplier :
       {Multiplier::kSm90, Multiplier::kFewRows, Multiplier::kMma, Multiplier::kGeneral}) {
    if (is_forced_away(desc, multiplier)) {
      continue;
    }
    const Refusal refusal = plan.activates ? nullptr : refusal_of(multiplier);
    if (refusal == nullptr) {
      plan.multiplier = multiplier;
      if (multiplier == Multiplier::kFewRows) {
        const bool folds = folds_int4(desc);
        plan.tile_rows = few_rows_tile(desc.weights, desc.rows.dtype,
                                       expected_rows / desc.weights.num_groups, folds);
        plan.folds_int4 = folds && plan.tile_rows > kSmallFewRowsTile;
      }
      if (multiplier == Multiplier::kSm90) {
        plan.fp8 = fp8_scales(desc);
        plan.fetches_ahead = pays_to_fetch(desc.weights, expected_rows);
      }
      if (decodes && multiplier == Multiplier::kSm90) {
        const WeightFacts& w = desc.weights;
        const int64_t blocks = decoded_blocks(w, desc.rows.dtype);
        plan.decoded_elements =
            quant::decoded_bytes(w.num_groups, w.n, w.k, blocks) / kDecodedElementBytes;
        const bool pays =
            w.n * w.k >= kLargeGroup && expected_rows >= kDecodedAheadRows * w.num_groups;
        plan.decodes_ahead = desc.decodes_ahead.value_or(pays) && can_decode_ahead(desc, plan);
      }
      return plan;
    }
    plan.reason = plan.reason.empty() ? refusal : plan.reason;
  }
  throw Unsupported(fmt::format("MOEBIUS_GEMM is {}, which refuses a GEMM of {} x {} x {}: {}",
                                name(*desc.forced), desc.weights.num_groups, desc.weights.n,
                                desc.weights.k, plan.reason));
}

std::string to_string(const GemmPlan& plan, const GemmDesc& desc) {
  const WeightFacts& w = desc.weights;
  std::string line = fmt::format("{} x {} x {}: {}{}", w.num_groups, w.n, w.k,
                                 name(plan.multiplier), plan.activates ? " with activation" : "");
  if (plan.tile_rows > 0) {
    line += fmt::format(" in tiles of {}", plan.tile_rows);
  }
  if (plan.decodes()) {
    line += plan.decodes_ahead ? ", of weights decoded ahead" : ", of decoded weights";
    line += desc.rows.dtype == DType::kF16 ? " in f16" : "";
  }
  if (plan.fp8 != Fp8Scales::kNone) {
    line += fmt::format(", of fp8 codes with scales of {}",
                        plan.fp8 == Fp8Scales::kBlocks ? "blocks" : "rows and columns");
  }
  if (desc.activation && !plan.activates) {
    line += "; activation in a kernel of its own";
  } else if (desc.codes && plan.activates && !plan.quantizes) {
    line += "; activated rows are quantized by a kernel of their own";
  }
  if (plan.decodes_from > 0) {
    line += fmt::format("; weights are decoded from {} rows on", plan.decodes_from);
  }
  return plan.reason.empty() ? line : line + fmt::format("; not sm90: {}", plan.reason);
}

bool can_decode(const WeightFacts& w, DType dtype) {
  if (!w.format || (dtype != DType::kBF16 && dtype != DType::kF16)) {
    return false;
  }
  const quant::Code code = quant::code_of(*w.format);
  const int needed = quant::code_bits(code) == 6 ? 2 : quant::code_bits(code);
  return w.k % kVector == 0 && w.alignment >= needed &&
         (w.grid.num_cols == 1 || w.grid.group_cols % quant::kDecodedStep == 0 ||
          quant::scaled_codes_fit(*w.format, dtype));
}

int64_t decoded_blocks(const WeightFacts& w, DType dtype) {
  return w.grid.num_cols == 1 || quant::scaled_codes_fit(*w.format, dtype) ? 0 : w.grid.num_cols;
}

int64_t decoded_group_elements(const WeightFacts& w, DType dtype) {
  return quant::decoded_group_bytes(w.n, w.k, decoded_blocks(w, dtype)) / kDecodedElementBytes;
}

int64_t decoded_ahead_slots(const WeightFacts& w, int64_t elements) {
  constexpr int64_t kOfWord = int64_t{sizeof(float)} / kDecodedElementBytes;
  const int64_t num_words = w.num_groups * w.n * (1 + decoded_blocks(w, DType::kBF16)) +
                            num_decode_counters(w.num_groups);
  return std::clamp<int64_t>((elements - kOfWord * num_words) / (w.n * w.k), 0, w.num_groups);
}

bool wants_bf16_codes(const WeightFacts& w,
                      const CudaDeviceInfo& gpu,
                      std::optional<Multiplier> forced) {
  const bool takes_codes =
      has_fp8_columns(w) && forced.value_or(Multiplier::kSm90) == Multiplier::kSm90;
  return w.format == QuantFormat::kFp8 && can_decode(w, DType::kBF16) &&
         has_sizes_of_sm90(w, gpu) && !takes_codes;
}

Fp8Scales fp8_scales(const GemmDesc& desc) {
  const RowFacts& rows = desc.rows;
  const WeightFacts& w = desc.weights;
  if (desc.keeps_f32 || rows.dtype != DType::kF8E4M3 || w.format != QuantFormat::kFp8) {
    return Fp8Scales::kNone;
  }
  const bool restarts_within_block = w.gate_rows < w.n && w.gate_rows % kSm90Block != 0;
  if (rows.scales == RowScales::kPerRow && rows.block == kSm90Block &&
      w.shape == GroupShape{kSm90Block, kSm90Block} && w.scale_dtype == DType::kF32 &&
      w.scale_dims == 3 && !restarts_within_block) {
    return Fp8Scales::kBlocks;
  }
  const bool has_row_scales =
      rows.scales != RowScales::kNone && !rows.divides &&
      (rows.scales != RowScales::kPerRow || has_one_scale_per_row(rows, w.k));
  return has_row_scales && has_fp8_columns(w) ? Fp8Scales::kRowsAndColumns : Fp8Scales::kNone;
}

MmaPlan plan_mma(const GemmDesc& desc) {
  constexpr int kStepBytes = 64;
  const WeightFacts& w = desc.weights;
  const DType rows = desc.rows.dtype;
  MmaPlan plan;
  if (rows == DType::kI8 && w.format == QuantFormat::kInt8 && !w.has_zero_point &&
      w.k <= kMaxS8Depth) {
    plan.kind = MmaPlan::Kind::kS8;
  } else if (rows != DType::kF32) {
    const bool is_f16 = rows == DType::kF16;
    if (w.format || w.dtype == (is_f16 ? DType::kF16 : DType::kBF16)) {
      plan.kind = is_f16 ? MmaPlan::Kind::kF16 : MmaPlan::Kind::kBf16;
    }
  }
  plan.step = plan.kind == MmaPlan::Kind::kS8 ? kStepBytes : kStepBytes / 2;
  plan.folds =
      w.format && quant::scaled_codes_fit(
                      *w.format, plan.kind == MmaPlan::Kind::kBf16 ? DType::kBF16 : DType::kF16);
  const bool has_blocks = w.format && w.grid.num_cols > 1;
  if (has_blocks && w.grid.group_cols % kVector != 0) {
    return plan;
  }
  const int64_t a_block =
      has_one_scale_per_row(desc.rows, w.k) || desc.rows.scales != RowScales::kPerRow
          ? w.k
          : desc.rows.block;
  const int64_t w_block = has_blocks && !plan.folds ? w.grid.group_cols : w.k;
  const int64_t segment = std::min(a_block, w_block);
  const int64_t other = std::max(a_block, w_block);
  const bool is_whole =
      (segment == w.k || segment % plan.step == 0) && (other == w.k || other % segment == 0);
  plan.segment = is_whole ? static_cast<int>(segment) : 0;
  return plan;
}

}  // namespace moebius::cuda
