// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// CallBuffers: the scratch of a call of the experts on a GPU, laid out once for measuring and use.
// Letters are those of ExpertsDesc.
#pragma once

#include <cstdint>
#include <optional>

#include "core/scratch.h"
#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/gemm/gemm_plan.h"
#include "experts/cuda/rows/row_coder.h"
#include "moebius/experts.h"
#include "moebius/slot_order.h"

namespace moebius::cuda {

// Holds what a number of rows decides about a call.
struct RowPlan {
  int64_t rows = 0;
  int64_t slots = 0;      // ExpertsBase::num_slots() of them
  int64_t hint = 0;       // ExpertsInput::expected_rows
  int64_t expected = 0;   // how many rows the GEMMs are expected to have
  GemmPlan gemm1, gemm2;  // of so many
  // GEMM1 stores no result of its own.  Batched rows of a caller may not be aligned, and then only
  // the other GEMMs take them.
  bool is_always_fused = false;
  int64_t decoded_elements = 0;  // room for decoded weights
  int64_t scratch_bytes = 0;     // with a hint no more than without
};

// Holds what the layout follows from, apart from the rows of a call.
struct BufferFacts {
  const ExpertsDesc& desc;
  const RowCoder& a1;             // of GEMM1's rows
  const RowCoder& a2;             // of GEMM2's
  std::optional<QuantFormat> w1;  // the format of GEMM1's weights
  std::optional<QuantFormat> w2;  // of GEMM2's
  Device device;
  int lora_halves;

  bool is_batched() const { return desc.format == ActivationFormat::kBatched; }
  // Says whether one kernel activates and quantizes GEMM1's result, so activated rows are not
  // stored.
  bool activates_to_codes() const { return a2.activates(desc.intermediate); }
};

struct CallBuffers {
  // Takes the buffers of a call with plan.rows from `scratch`, which may only measure.  Neither
  // `facts` nor `plan` is kept.
  CallBuffers(const BufferFacts& facts, const RowPlan& plan, Scratch& scratch);

  // Takes an order that is made already in place of room for one.
  void take_order(const SlotOrder& order);

  Tensor next_item;  // see ExpertGemm
  Tensor expert_offsets, row_of_slot, token_of_row;
  RowOperand coded;     // x quantized, in x's order or (where that needs groups) computing order
  RowOperand gathered;  // x in computing order, where GEMM1 takes no index
  Tensor gemm1, act, gemm2;
  RowOperand hidden;              // act, or its codes
  int64_t expected = 0;           // how many rows the GEMMs are expected to have
  bool fuses_activation = false;  // GEMM1 activates as it stores
  bool fuses_codes = false;       // and quantizes
  bool gemm1_codes = false;       // GEMM1 quantizes rows as it reads them
  bool gemm2_activates = false;   // GEMM2 activates rows as it reads them
  bool gemm2_codes = false;       // GEMM2 activates and quantizes rows as it reads them
  Tensor w1_decoded, w2_decoded;  // see ExpertGemm
  float* sums = nullptr;          // the result of either GEMM, before adapters
  float* shrunk = nullptr;

 private:
  void take_operand(const BufferFacts& facts, const RowPlan& plan, Scratch& scratch);
  void take_result(const BufferFacts& facts, const RowPlan& plan, Scratch& scratch);
};

}  // namespace moebius::cuda
