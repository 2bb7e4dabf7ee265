// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The product of an expert GEMM in any scheme: out[r] = w[g] * a[r] + bias[g] for the rows r of
// each group g, in f32, rounded to out's dtype.  Letters: G groups (local experts), M rows, N, K.
// Nothing waits on the host.
#pragma once

#include "experts/cuda/rows/row_groups.h"
#include "moebius/experts.h"
#include "moebius/quant_config.h"
#include "moebius/quantize.h"
#include "moebius/row_arrivals.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::cuda {

// What shares a scale of an operand's rows.
enum class RowScales : uint8_t { kNone, kAll, kPerGroup, kPerRow };

// Rows whose elements stand for value * scale, or value / scale.
struct RowOperand {
  Tensor values;  // [M, K]: f32, bf16, f16, f8e4m3 or i8; bf16 may hold codes of f8e4m3
  Tensor scale;   // f32 [1], [G] or [M, ceil(K / block)], as `scales` says
  RowScales scales = RowScales::kNone;
  int64_t block = 0;  // columns per scale of kPerRow
  bool divides = false;
  // i32 [M], optional: row r is values[index[r]], with the scale of that one; values and scales
  // then have any number of rows.  Only where takes_index() or can_run_activated_gemm() says so.
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
  // Scratch, bf16, decoded_elements(): where weights in codes are decoded, some groups at a time,
  // for the GEMM that takes bf16.  Undefined: they are not.
  Tensor decoded = {};
  // Results are not rounded to 16 bits, here or later: not by fp8 tensor cores, then, which keep 14
  // bits of a sum.
  bool keeps_f32 = false;
  int64_t expected_rows = 0;  // of all groups together; 0: as many as there is room for
  // See GroupedGemm; unless can_take_columns(), all are computed.
  int64_t first_column = 0;
  int64_t num_columns = 0;
};

// 0: w is read in its codes, where `expected_rows` rows of dtype `a` are to be expected of all
// groups together.  Else those of as many groups as 512 MiB hold, at least one's.
int64_t decoded_elements(const WeightOperand& w, DType a, int64_t expected_rows);

// Whether codes of rows in fp8 are better told in bf16: fp8 tensor cores keep 14 bits of a sum,
// and only scales of blocks end their sums early enough.
bool wants_bf16_codes(const WeightOperand& w);

// Whether its num_columns can be computed alone.
bool can_take_columns(const ExpertGemm& gemm);

// Whether its rows may be told by RowOperand::index.
bool takes_index(const ExpertGemm& gemm);

// Picks the implementation.
void run_expert_gemm(const ExpertGemm& gemm, const Stream& stream);

// GEMM1 and the activation, in one kernel: bit for bit run_expert_gemm to bf16 and activate() or,
// with `codes`, activate_to_codes().
struct ActivatedGemm {
  ExpertGemm gemm;  // without out
  ActivationSpec activation;
  const QuantizeSpec* codes = nullptr;  // with out.scale
  RowOperand out;                       // [M, I]
};
bool can_run_activated_gemm(const ActivatedGemm& gemm);
// False: it cannot, and has done nothing.
bool run_activated_gemm(const ActivatedGemm& gemm, const Stream& stream);

// Blocks of a grid that would put `per_sm` on each SM.  With a limit one on each that it may have:
// blocks are dealt out over all SMs before any SM gets a second.
int64_t blocks_of(const ExpertGemm& gemm, int64_t per_sm, int device_index);

// Codes decoded in registers, at the speed at which they are read if there are few rows per group.
// On Hopper: rows in bf16 with one scale each at most, codes of 4 or 8 bits, K a multiple of 32.
bool few_rows_takes_weights(const WeightOperand& w);
bool can_few_rows_gemm(const ExpertGemm& gemm);
void few_rows_gemm(const ExpertGemm& gemm, const Stream& stream);

// On the tensor cores: operands whose codes bf16, f16 or int8 hold, scales in whole steps.
bool can_mma_gemm(const ExpertGemm& gemm);
void mma_gemm(const ExpertGemm& gemm, const Stream& stream);

// Any operands, products of the f32 values that they stand for.
void general_gemm(const ExpertGemm& gemm, const Stream& stream);

}  // namespace moebius::cuda
