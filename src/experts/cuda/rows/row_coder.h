// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// RowCoder: quantizes the rows of an expert GEMM on a GPU, those in use only.
//   fp8, int8    codes and f32 scales; those of fp8 as bf16 where the GEMM wants them so
//   mx, nvfp4    code times block scale, which bf16 holds exactly; nvfp4's global scale stays apart
// Scales over all rows cover those of one call in the standard format, one expert's in the batched.
#pragma once

#include <optional>

#include "core/scratch.h"
#include "experts/cuda/gemm/expert_gemm.h"
#include "moebius/experts.h"
#include "moebius/quantize.h"

namespace moebius::cuda {

class RowCoder {
 public:
  // desc: of a1 or a2, its tensors on the GPU; w: what its rows are multiplied by.
  RowCoder(const QuantDesc& desc, const ExpertsDesc& experts, const WeightOperand& w);

  bool active() const { return spec_.has_value(); }
  const QuantizeSpec& spec() const { return *spec_; }
  // Of coded rows.
  DType dtype() const;
  // A row's code depends on its expert.
  bool needs_groups() const { return active() && scales_ == RowScales::kPerGroup; }

  // Of rows of k elements that it has coded.
  RowFacts facts(int64_t k) const;
  // Room for `rows` coded rows of k elements.
  RowOperand take(Scratch& scratch, int64_t rows, int64_t k) const;
  // x [rows, k] in in_dtype -> out, for the rows in use.
  void encode(const Tensor& x,
              const RowGroups& rows,
              const RowOperand& out,
              const Stream& stream) const;
  bool widens_codes() const { return widens_codes_; }
  // What codes [rows, k] that a caller gives with ExpertsInput::x_scale stand for, in room.values
  // if dtype() is another than that of the codes.
  RowOperand given(const Tensor& codes,
                   const Tensor& x_scale,
                   const RowOperand& room,
                   const Stream& stream) const;

 private:
  bool is_dynamic() const { return !constant_; }

  std::optional<QuantizeSpec> spec_;
  Tensor constant_;  // static or global scale [1] or [L]; undefined: from the rows
  RowScales scales_ = RowScales::kNone;
  int64_t num_experts_ = 1;
  bool widens_codes_ = false;  // fp8 to bf16
};

}  // namespace moebius::cuda
