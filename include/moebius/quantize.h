// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Quantize and dequantize: an [M, K] matrix of f32, bf16 or f16 to values and scales, and back.
// Place: before or after dispatch (activations), between the two expert GEMMs, and when a
// checkpoint is made.  docs/formats.md has the exact rounding rules; they follow the public vLLM
// kernels.
// Thread-safety: all are free functions, and calls with different outputs may run at the same time.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "moebius/api.h"
#include "moebius/quant_config.h"
#include "moebius/stream.h"
#include "moebius/support.h"
#include "moebius/tensor.h"

namespace moebius MOEBIUS_API {

// How a matrix is quantized.  For int8 the group decides the rounding, as in vLLM's kernels:
//   per tensor  half to even;  per token  half away from zero;  groups  toward zero.
struct QuantizeSpec {
  QuantFormat format = QuantFormat::kFp8;
  // fp8: per tensor, per token, {1, g}, {r, c}.  int8: per tensor, per token, {1, g}.
  // int4: {1, even g}, per token.  mx: {1, 32}.  nvfp4: {1, 16}.  The last group of a row may be
  // short, except for mx and nvfp4.
  GroupShape group = GroupShape::per_tensor();
  // fp8 blocks: scales are rounded up to powers of two (UE8M0 values, stored as f32).
  bool power_of_two_scale = false;
  // int4: codes span the range from min to max with a zero point, instead of lying around 8.
  bool asymmetric = false;
  // nvfp4: every row has a global scale of its own, so that it depends on nothing but the row.  It
  // is a power of two, so that bf16 still holds every value exactly.
  bool global_scale_per_row = false;

  bool operator==(const QuantizeSpec&) const = default;
};

// Quantized values and what is needed to read them.  All tensors are on one device.
struct Quantized {
  Tensor values;        // [M, K], storage_dtype(format)
  Tensor scale;         // f32, e8m0 (mx) or e4m3 (nvfp4): [1, 1], [M, 1] or [ceil(M/r), ceil(K/g)]
  Tensor zero_point;    // int4 asymmetric: u8 [M, ceil(K/g)]
  Tensor global_scale;  // nvfp4: f32 [1], or [M] with global_scale_per_row
};

// Whether the spec fits a [rows, cols] matrix; if not, the reason says which rule it breaks.
Support quantize_supported(const QuantizeSpec& spec, int64_t rows, int64_t cols);

// Uninitialised outputs of the right shapes.  Throws InvalidArgument when quantize_supported()
// refuses.
Quantized allocate_quantized(const QuantizeSpec& spec,
                             int64_t rows,
                             int64_t cols,
                             Device device = {});

// x [M, K] f32, bf16 or f16 -> out, which comes from allocate_quantized() and must not overlap x.
// On a GPU all tensors are on the stream's device, and the host does not wait.
// static_scale  f32 [1]: replaces the scale from the maximum for fp8 and int8 per tensor.
// global_scale  f32 [1], nvfp4 only; when it is undefined, 448 * 6 / max|x| is computed.  None may
//               be given with global_scale_per_row.
// M == 0 is valid.  NaN and infinity are no errors, as activations may have them, but most codes
// cannot say NaN, so that it becomes a number (docs/formats.md); expect_finite_weight() is for
// weights.  Throws InvalidArgument (shape, dtype) or Unsupported (forced implementation).
// The first implementation of src/quant/impls.cc that accepts is used; MOEBIUS_QUANT forces one.
void quantize(const Tensor& x,
              const QuantizeSpec& spec,
              Quantized& out,
              const Stream& stream,
              const Tensor& static_scale = {},
              const Tensor& global_scale = {});
// Allocates the outputs and quantizes.
Quantized quantize(const Tensor& x, const QuantizeSpec& spec, const Stream& stream = {});

// Throws InvalidArgument, which names `what`, index and value, unless every element of w, which is
// f32, bf16 or f16 on the CPU, is finite.  Checkpoint does the same when it loads weights.
void expect_finite_weight(const Tensor& w, std::string_view what, const Stream& stream = {});

// out [M, K] f32, bf16 or f16 = the values that the quantized data stands for, rounded once.  It
// may not overlap that data.  Errors are those of quantize().
void dequantize(const Quantized& q,
                const QuantizeSpec& spec,
                const Tensor& out,
                const Stream& stream);

// out = dequantize(quantize(x)) without storing the codes; x and out may be the same tensor.  The
// library computes this way with formats that the hardware lacks.
void quantize_dequantize(const Tensor& x,
                         const QuantizeSpec& spec,
                         const Tensor& out,
                         const Stream& stream,
                         const Tensor& static_scale = {},
                         const Tensor& global_scale = {});

// The spec that quantizes an activation with this desc; nullopt when it is not quantized.  nvfp4
// has a global scale per row where the desc gives none.
std::optional<QuantizeSpec> activation_spec(const QuantDesc& desc);
// The spec that describes a weight's layout; nullopt when the weight is not quantized.
std::optional<QuantizeSpec> weight_spec(const QuantDesc& desc);

// Rows [begin, end) of an expert of a weight [L, N, K].
struct WeightRows {
  int64_t local_expert = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t gate_rows = 0;  // I for a gated w1, whose blocks and global scales restart there; else N
};
// Reads rows of a quantized or plain weight w into out [end - begin, K] f32, row-major, without
// bias.  activation_gscale is what alpha_or_gscale of an nvfp4 weight was divided by; undefined
// means 1.  All tensors are on the CPU, and the calling thread does the work.  Throws
// InvalidArgument (bounds, shapes, types) or Unsupported (a tensor is on a GPU).
void dequantize_weight_rows(const Tensor& w,
                            const QuantDesc& desc,
                            const WeightRows& rows,
                            float* out,
                            const Tensor& activation_gscale = {});

}  // namespace moebius
