// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Quantized activations inside the experts: GEMM1's input rows and GEMM2's, either as codes with
// f32 scales (for kernels that multiply codes) or as the values they stand for.
// Dynamic per tensor scales cover the rows of one call: all of them in the standard format, one
// expert's in the batched format, where the padding must not count.
#pragma once

#include <cstdint>
#include <optional>

#include "experts/permute.h"
#include "moebius/experts.h"
#include "moebius/quantize.h"

namespace moebius {

// Whether rows that are quantized in this way come to the experts as codes.  Else they travel as
// they are, and experts quantize what arrives.
constexpr bool takes_codes(QuantFormat format) {
  return format == QuantFormat::kFp8 || format == QuantFormat::kInt8;
}

// How one activation operand (a1 or a2) is quantized.
class RowQuantizer {
 public:
  RowQuantizer(const QuantDesc& desc, ActivationFormat format);

  bool active() const { return spec_.has_value(); }
  const QuantizeSpec& spec() const { return *spec_; }
  // Rows of different experts need calls of their own.
  bool per_expert() const { return per_expert_; }
  // f32 scales per row of k elements: one, or one per block; 1 when not active().
  int64_t num_blocks(int64_t k) const;

  // rows [R, k] of local expert e (any when not per_expert()) -> values f32 [R, k]; may be `rows`.
  void values(const Tensor& rows, int64_t e, const Tensor& values, const Stream& stream) const;
  // fp8, int8: codes [R, k] and scales [R, num_blocks(k)].
  void codes(const Tensor& rows,
             int64_t e,
             const Tensor& codes,
             float* scales,
             const Stream& stream) const;

 private:
  Tensor of_expert(const Tensor& constant, int64_t e) const;

  std::optional<QuantizeSpec> spec_;
  Tensor static_scale_;  // f32 [1] or [L]
  Tensor global_scale_;  // f32 [1] or [L]
  bool per_expert_ = false;
};

// GEMM1's rows [rows, H] for a call: x's rows in x's order, or one per computed row in computing
// order when `quantizer.per_expert()` holds in the standard format (`gathered`).
struct InputRows {
  bool gathered = false;

  InputRows(const RowQuantizer& quantizer, ActivationFormat format)
      : gathered(quantizer.per_expert() && format == ActivationFormat::kStandard) {}
  int64_t index(const RowOrder& order, int64_t r) const {
    return gathered ? r : order.input_row(r);
  }
};

// The rows of one operand (a1 or a2) in one call.  Everything is borrowed from the call.
struct CallRows {
  const ExpertsDesc& desc;
  const RowOrder& order;
  const RowQuantizer& quantizer;
  const Stream& stream;

  // Rows of GEMM1 as values f32 [X, H], X from ExpertsBase::num_input_rows, from x in in_dtype or
  // in codes with x_scale. Only rows that are computed are written in the batched format. `scales`
  // is scratch of [X, num_blocks] when x holds codes.
  void input_values(const ExpertsInput& input, const Tensor& values, float* scales) const;
  // The same as codes [X, H] with scales [X, num_blocks]; fp8 and int8.
  // Returns x itself where it holds codes, `codes` otherwise.
  Tensor input_codes(const ExpertsInput& input, const Tensor& codes, float* scales) const;

  // Rows of GEMM2, sorted by expert.
  void hidden_values(const Tensor& rows) const;
  void hidden_codes(const Tensor& rows, const Tensor& codes, float* scales) const;
};

}  // namespace moebius
