// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The product of an expert GEMM in any scheme: out[r] = w[g] * a[r] + bias[g] for the rows r of
// each group g, computed in f32 and rounded to out's dtype.  Nothing waits on the host.
// Letters: G groups (local experts), M rows, N, K.
#pragma once

#include <memory>

#include "core/cuda/fetch_ahead.h"
#include "experts/cuda/gemm/gemm_plan.h"
#include "experts/cuda/gemm/tensor_map.h"
#include "experts/cuda/rows/row_groups.h"
#include "moebius/experts.h"
#include "moebius/quant_config.h"
#include "moebius/quantize.h"
#include "moebius/row_arrivals.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::cuda {

// Rows whose elements stand for value * scale, or (`divides`) value / scale.
struct RowOperand {
  Tensor values;  // [M, K]: f32, bf16, f16, f8e4m3 or i8; bf16 may hold codes of f8e4m3
  Tensor scale;   // f32 [1], [G] or [M, ceil(K / block)], as `scales` says
  RowScales scales = RowScales::kNone;
  int64_t block = 0;  // columns per scale of kPerRow
  bool divides = false;
  // i32 [M], optional: row r is values[index[r]], with that row's scale; values and scales then
  // have any number of rows.  Only where GemmPlan::takes_index().
  Tensor index = {};
  // i32 [rows of values, K], optional beside an index: the rows that values[i] becomes, -1 = none.
  Tensor row_of_slot = {};
  RowArrivals::Signals arrivals = {};  // with an index; only where GemmPlan::takes_arrivals()
  // The rows are what this activation makes of `values`, which are GEMM1's result [M, N].
  // Only where GemmPlan::takes_unactivated(), without index, and with scales only beside `codes`.
  std::optional<ActivationSpec> activation = {};
  // The rows are what quantizing `values`, or their activation, to this gives, as RowCoder does;
  // `scale` is nvfp4's global scale, or there is none.  Only where GemmPlan::takes_uncoded().
  std::optional<QuantizeSpec> codes = {};
};

// Tensor maps of weights that kThin and kSm90 read as they lie.  They depend on addresses and sizes
// alone, and encoding one takes the host 0.12 us, so experts make them once.
struct WeightMaps {
  struct ByLines {
    CUtensorMap thin;  // of bf16
    ColumnMaps sm90;

    ByLines(const Tensor& values, Lines lines);
  };
  ByLines pairs;
  ByLines single;

  explicit WeightMaps(const Tensor& values)
      : pairs(values, Lines::kPairs), single(values, Lines::kSingle) {}
  const ByLines& of(bool evicts) const { return evicts ? single : pairs; }
};

struct WeightOperand {
  Tensor values;             // [G, N, K], plain or in the format of `quant`
  QuantDesc quant;           // its tensors on the GPU; bias f32
  int64_t gate_rows = 0;     // see dequantize_weight_rows
  Tensor activation_gscale;  // see dequantize_weight_rows
  bool is_packed = false;    // by pack_codes(); then rows are bf16
  // These are of `values` and of the scales; without them a call makes what it needs.
  std::shared_ptr<const WeightMaps> maps = {};
  Tensor scale_norms = {};  // f32 [G, N], see dequant/scale_norms.h
};

struct ExpertGemm {
  RowOperand a;
  const WeightOperand* w;
  RowGroups rows;
  Tensor out;             // [M, N]: f32, bf16 or f16; rows not in use stay as they are
  Tensor next_item = {};  // see GroupedGemm
  int max_sms = 0;        // 0: all
  // Scratch of GemmPlan::decoded_elements in 16 bits.  Weights in codes are decoded there to the
  // type of the rows, some groups at a time.  Undefined: weights are not decoded.
  Tensor decoded = {};
  bool keeps_f32 = false;     // see GemmDesc
  int64_t expected_rows = 0;  // of all groups together; 0: as many as there is room for
  // See GroupedGemm.  Unless GemmPlan::takes_columns(), all columns are computed.
  int64_t first_column = 0;
  int64_t num_columns = 0;
  // For kThin and kSm90: what the kernel fetches of its weights while it waits for the sizes of
  // groups.  is_fetched: see GemmDesc.
  FetchAhead fetch = {};
  bool is_fetched = false;
  int64_t most_thin_code_rows = kManyRows;           // see GemmDesc
  std::optional<Multiplier> forced = std::nullopt;   // see GemmDesc
  std::optional<bool> decodes_ahead = std::nullopt;  // see GemmDesc
};

// Runs the GEMM as plan_of() says.
void run_expert_gemm(const ExpertGemm& gemm, const Stream& stream);

// GEMM1 and the activation in one kernel.  The result has the bits of run_expert_gemm to bf16
// followed by activate() or, with `codes`, by RowCoder::activate() or RowCoder::encode().  `codes`
// are for plans that quantize; a scale of a whole tensor is given as out.scale.
struct ActivatedGemm {
  ExpertGemm gemm;  // without out
  ActivationSpec activation;
  const QuantizeSpec* codes = nullptr;  // with out.scale
  RowOperand out;                       // [M, I]
};
// Returns false where plan_of() does not activate, or not to `codes`; nothing has been done then.
bool run_activated_gemm(const ActivatedGemm& gemm, const Stream& stream);

// Says whether a tensor has the alignment that plans assume before any memory exists.
bool has_planned_alignment(const Tensor& tensor);
// The facts of operands that exist, and the plan for them, which is choose_gemm() with the room for
// decoded weights that the GEMM has.
WeightFacts facts_of(const WeightOperand& w);
GemmDesc desc_of(const ExpertGemm& gemm);
GemmPlan plan_of(const ExpertGemm& gemm);
GemmPlan plan_of(const ActivatedGemm& gemm);

// The blocks of a grid that puts `per_sm` on each SM.  With a limit of SMs the grid has one block
// for each of them: blocks are dealt out over all SMs before any SM gets a second one.
int64_t blocks_of(const ExpertGemm& gemm, int64_t per_sm, int device_index);

// The functions of each Multiplier but kSm90 (grouped_gemm.h).  kThin has one for weights in bf16,
// and one for codes.
// REQUIRES: plan_of() names it, or would if it were forced.
void thin_gemm(const ExpertGemm& gemm, const GemmPlan& plan, const Stream& stream);
void thin_codes_gemm(const ExpertGemm& gemm, const GemmPlan& plan, const Stream& stream);
void few_rows_gemm(const ExpertGemm& gemm, const GemmPlan& plan, const Stream& stream);
void mma_gemm(const ExpertGemm& gemm, const Stream& stream);
void general_gemm(const ExpertGemm& gemm, const Stream& stream);

// How thin_gemm() finds boxes of weights, see WeightMaps.
CUtensorMap thin_map(const Tensor& weights, Lines lines);

}  // namespace moebius::cuda
