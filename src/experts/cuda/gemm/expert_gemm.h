// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The product of an expert GEMM in any scheme: out[r] = w[g] * a[r] + bias[g] for the rows r of
// each group g, in f32, rounded to out's dtype.  Letters: G groups (local experts), M rows, N, K.
// Nothing waits on the host.
#pragma once

#include "experts/cuda/gemm/gemm_plan.h"
#include "experts/cuda/rows/row_groups.h"
#include "moebius/experts.h"
#include "moebius/quant_config.h"
#include "moebius/quantize.h"
#include "moebius/row_arrivals.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::cuda {

// Rows whose elements stand for value * scale, or value / scale.
struct RowOperand {
  Tensor values;  // [M, K]: f32, bf16, f16, f8e4m3 or i8; bf16 may hold codes of f8e4m3
  Tensor scale;   // f32 [1], [G] or [M, ceil(K / block)], as `scales` says
  RowScales scales = RowScales::kNone;
  int64_t block = 0;  // columns per scale of kPerRow
  bool divides = false;
  // i32 [M], optional: row r is values[index[r]], with the scale of that one; values and scales
  // then have any number of rows.  Only where GemmPlan::takes_index().
  Tensor index = {};
  RowArrivals::Signals arrivals = {};  // with an index: rows may still be on their way
};

struct WeightOperand {
  Tensor values;             // [G, N, K], plain or in the format of `quant`
  QuantDesc quant;           // its tensors on the GPU; bias f32
  int64_t gate_rows = 0;     // see dequantize_weight_rows
  Tensor activation_gscale;  // see dequantize_weight_rows
};

struct ExpertGemm {
  RowOperand a;
  const WeightOperand* w;
  RowGroups rows;
  Tensor out;             // [M, N]: f32, bf16 or f16; rows not in use stay as they are
  Tensor next_item = {};  // see GroupedGemm
  int max_sms = 0;        // 0: all
  // Scratch, bf16, GemmPlan::decoded_elements: where weights in codes are decoded, some groups at a
  // time, for the GEMM that takes bf16.  Undefined: they are not.
  Tensor decoded = {};
  bool keeps_f32 = false;     // see GemmDesc
  int64_t expected_rows = 0;  // of all groups together; 0: as many as there is room for
  // See GroupedGemm; unless GemmPlan::takes_columns(), all are computed.
  int64_t first_column = 0;
  int64_t num_columns = 0;
  std::optional<Multiplier> forced = std::nullopt;  // see GemmDesc
};

// As plan_of() says.
void run_expert_gemm(const ExpertGemm& gemm, const Stream& stream);

// GEMM1 and the activation, in one kernel: bit for bit run_expert_gemm to bf16 and activate() or,
// with `codes`, activate_to_codes().
struct ActivatedGemm {
  ExpertGemm gemm;  // without out
  ActivationSpec activation;
  const QuantizeSpec* codes = nullptr;  // with out.scale
  RowOperand out;                       // [M, I]
};
// False: plan_of() does not activate, and nothing has been done.
bool run_activated_gemm(const ActivatedGemm& gemm, const Stream& stream);

// The facts of operands that exist, and the plan for them: choose_gemm() with the room for decoded
// weights that the GEMM has.
WeightFacts facts_of(const WeightOperand& w);
GemmDesc desc_of(const ExpertGemm& gemm);
GemmPlan plan_of(const ExpertGemm& gemm);
GemmPlan plan_of(const ActivatedGemm& gemm);

// Blocks of a grid that would put `per_sm` on each SM.  With a limit one on each that it may have:
// blocks are dealt out over all SMs before any SM gets a second.
int64_t blocks_of(const ExpertGemm& gemm, int64_t per_sm, int device_index);

// One for each Multiplier but kSm90 (grouped_gemm.h).  REQUIRES: that plan_of() names it, or would
// if it were asked for.
void few_rows_gemm(const ExpertGemm& gemm, const GemmPlan& plan, const Stream& stream);
void mma_gemm(const ExpertGemm& gemm, const Stream& stream);
void general_gemm(const ExpertGemm& gemm, const Stream& stream);

}  // namespace moebius::cuda
