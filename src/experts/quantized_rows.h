// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Quantizes activations inside the experts: the rows of GEMM1 and of GEMM2 become either codes with
// f32 scales, for kernels that multiply codes, or the values that the codes stand for.  A dynamic
// scale per tensor covers all rows of a call in the standard format, and the rows of one expert in
// the batched format, where the padding must not count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "experts/permute.h"
#include "moebius/experts.h"
#include "moebius/quantize.h"

namespace moebius {

// Whether rows that are quantized in this format come to the experts as codes.  Of other formats
// the experts take unquantized rows, too, and mostly do.
constexpr bool takes_codes(QuantFormat format) {
  return format == QuantFormat::kFp8 || format == QuantFormat::kInt8;
}

// Sets out [k] to the values of a row of codes, of fp8 or int8, with a scale for each `block`
// columns.
void decode_row(
    const std::byte* codes, DType dtype, const float* scales, int64_t block, int64_t k, float* out);

// Quantizes rows as one activation operand (a1 or a2) says.
class RowQuantizer {
 public:
  RowQuantizer(const QuantDesc& desc, ActivationFormat format);

  bool active() const { return spec_.has_value(); }
  const QuantizeSpec& spec() const { return *spec_; }
  // Whether the rows of each expert need a call of their own.
  bool per_expert() const { return per_expert_; }
  // The number of f32 scales per row of k elements: one, or one per block; 1 when not active().
  int64_t num_blocks(int64_t k) const;

  // Whether a call brings the scale of each row (QuantDesc::calls_bring_scales).
  bool takes_scales() const { return takes_scales_; }

  // Sets values f32 [R, k], which may be `rows`, from rows [R, k] of local expert e (any when not
  // per_expert()).  `scales` [R] are those that the call brings; null where it brings none.
  void values(const Tensor& rows,
              int64_t e,
              const Tensor& values,
              const float* scales,
              const Stream& stream) const;
  // Sets values f32 [R, k] to what codes of mx or nvfp4 stand for, with scales as in
  // ExpertsInput::x_scale.
  void decode(const Tensor& codes,
              const Tensor& scale,
              const Tensor& values,
              const Stream& stream) const;
  // Sets codes [R, k] and scales [R, num_blocks(k)]; for fp8 and int8.  With takes_scales() the
  // scales are there already.
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
  bool takes_scales_ = false;
};

// Says which rows [rows, H] GEMM1 reads in a call: x's rows in x's order, or, where
// quantizer.per_expert() holds in the standard format (`gathered`), one per computed row in
// computing order.
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

  // Sets values f32 [X, H], X from ExpertsBase::num_input_rows, to the rows of GEMM1, from x in
  // in_dtype or in codes with x_scale.  In the batched format only rows that are computed are
  // written.  `scales` is scratch of [X, num_blocks] when x holds codes.
  void input_values(const ExpertsInput& input, const Tensor& values, float* scales) const;
  // Does the same for codes [X, H] with scales [X, num_blocks], of fp8 and int8.  Returns x itself
  // where it holds codes, and `codes` otherwise.
  Tensor input_codes(const ExpertsInput& input, const Tensor& codes, float* scales) const;

  // Sets scales [R] to those that the call brings for rows [begin, end) of GEMM2, R = end - begin,
  // where quantizer.takes_scales() holds.
  void take_scales(const Tensor& a2_scale, int64_t begin, int64_t end, float* scales) const;
  // Quantize the rows of GEMM2, which are sorted by expert.  With quantizer.takes_scales() `scales`
  // are there already; otherwise hidden_values() has no use for them.
  void hidden_values(const Tensor& rows, const float* scales = nullptr) const;
  void hidden_codes(const Tensor& rows, const Tensor& codes, float* scales) const;
};

}  // namespace moebius
