// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// RowCoder: quantizes the rows of an expert GEMM on a GPU, but only those in use.
//   fp8, int8    codes and f32 scales; codes of fp8 as bf16 where the GEMM wants them so
//   mx, nvfp4    code times block scale, which bf16 holds exactly; nvfp4's global scale stays apart
// A scale over all rows covers the rows of a call in the standard format, and those of one expert
// in the batched format.
#pragma once

#include <optional>

#include "core/scratch.h"
#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/rows/given_scales.h"
#include "moebius/experts.h"
#include "moebius/quantize.h"
#include "quant/group_rule.h"

namespace moebius::cuda {

class RowCoder {
 public:
  // desc is that of a1 or a2, with its tensors on the GPU; w is what its rows are multiplied by, by
  // the `forced` kernel if there is one.
  RowCoder(const QuantDesc& desc,
           const ExpertsDesc& experts,
           const WeightOperand& w,
           std::optional<Multiplier> forced);

  bool active() const { return spec_.has_value(); }
  const QuantizeSpec& spec() const { return *spec_; }
  // The dtype of quantized rows.
  DType dtype() const;
  // Whether one scale per expert or of all rows is known before.
  bool has_static_scale() const { return spec_ && spec_->group.is_per_tensor() && constant_; }
  // Whether a row's code depends on its expert.
  bool needs_groups() const { return active() && scales_ == RowScales::kPerGroup; }

  // The facts of rows of k elements that it has quantized.
  RowFacts facts(int64_t k) const;
  // Room for `rows` quantized rows of k elements.
  RowOperand take(Scratch& scratch, int64_t rows, int64_t k) const;
  // Quantizes the rows in use of x [rows, k], which is in in_dtype, to out.  `given` scales are of
  // fp8 or int8 per token.
  void encode(const Tensor& x,
              const RowGroups& rows,
              const RowOperand& out,
              const Stream& stream,
              const GivenScales& given = {}) const;
  // Says whether a GEMM can quantize rows of this type as it reads them: to nvfp4 or mx formats,
  // with scales that are known before or follow from each row.
  bool can_defer(DType rows) const { return decodes() && knows_scales() && rows != DType::kF32; }
  // Returns x [rows, k] for a GEMM that quantizes its rows (RowOperand::codes); `room` is as for
  // encode().
  RowOperand deferred(const Tensor& x, const RowOperand& room) const;
  // Says whether activate() takes rows of k elements.
  bool activates(int64_t k) const;
  // Activates the rows in use of x [rows, N], which is as for cuda::activate(), and quantizes them
  // to out, in one pass and with the bits of two.
  void activate(const ActivationSpec& activation,
                const Tensor& x,
                const RowGroups& rows,
                const RowOperand& out,
                const Stream& stream,
                const GivenScales& given = {}) const;
  // Whether fp8 codes are stored as bf16.
  bool widens_codes() const { return widens_codes_; }
  // Whether codes that a caller gives are decoded to values before they are multiplied.
  bool decodes() const { return spec_ && quant::scaled_codes_fit(spec_->format, DType::kBF16); }
  // The operand for codes [rows, k] that a caller gives with ExpertsInput::x_scale.  It is in
  // room.values if dtype() is not that of the codes.  Only rows in use are decoded.
  RowOperand given(const Tensor& codes,
                   const Tensor& x_scale,
                   const RowGroups& rows,
                   const RowOperand& room,
                   const Stream& stream) const;

 private:
  void decode(const Tensor& codes,
              const Tensor& x_scale,
              const RowGroups& rows,
              const Tensor& values,
              const Stream& stream) const;
  bool is_dynamic() const { return !constant_; }
  bool knows_scales() const { return !is_over_rows() || !is_dynamic(); }
  bool is_over_rows() const {
    return scales_ == RowScales::kAll || scales_ == RowScales::kPerGroup;
  }
  bool divides() const {
    return spec_->format == QuantFormat::kNvfp4 && !spec_->global_scale_per_row;
  }

  std::optional<QuantizeSpec> spec_;
  Tensor constant_;  // static or global scale [1] or [L]; undefined: scales come from the rows
  RowScales scales_ = RowScales::kNone;
  int64_t num_experts_ = 1;
  bool widens_codes_ = false;
};

}  // namespace moebius::cuda
