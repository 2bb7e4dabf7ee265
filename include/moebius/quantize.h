// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Quantize and dequantize: a [M, K] f32/bf16/f16 matrix to values and scales, and back.
// Place: before dispatch or after it (activations), between the two expert GEMMs, and when a
// checkpoint is made.  Exact rounding rules: docs/formats.md; they follow the public vLLM kernels.
// Thread-safety: free functions; calls with different outputs may run at the same time.
#pragma once

#include <cstdint>
#include <optional>

#include "moebius/quant_config.h"
#include "moebius/stream.h"
#include "moebius/support.h"
#include "moebius/tensor.h"

namespace moebius {

// What to do.  The int8 rounding follows from the group, as in the kernels it mirrors:
//   per tensor  half to even;  per token  half away from zero;  groups  toward zero.
struct QuantizeSpec {
  QuantFormat format = QuantFormat::kFp8;
  // fp8: per tensor, per token, {1, g}, {r, c}.  int8: per tensor, per token, {1, g}.
  // int4: {1, even g}, per token.  mx: {1, 32}.  nvfp4: {1, 16}.  A last group may be short but for
  // mx and nvfp4.
  GroupShape group = GroupShape::per_tensor();
  // fp8 blocks: scales rounded up to powers of two (UE8M0 values, stored as f32).
  bool power_of_two_scale = false;
  // int4: zero point and min/max range instead of symmetric around 8.
  bool asymmetric = false;

  bool operator==(const QuantizeSpec&) const = default;
};

// Values, and what is needed to read them.  All tensors are on one device.
struct Quantized {
  Tensor values;        // [M, K], storage_dtype(format)
  Tensor scale;         // f32, e8m0 (mx) or e4m3 (nvfp4): [1, 1], [M, 1] or [ceil(M/r), ceil(K/g)]
  Tensor zero_point;    // int4 asymmetric: u8 [M, ceil(K/g)]
  Tensor global_scale;  // nvfp4: f32 [1]
};

// Whether spec is meaningful for [rows, cols] (group divides K where the format demands it, ...).
Support quantize_supported(const QuantizeSpec& spec, int64_t rows, int64_t cols);

// Uninitialised outputs of the right shapes.
Quantized allocate_quantized(const QuantizeSpec& spec,
                             int64_t rows,
                             int64_t cols,
                             Device device = {});

// x [M, K] f32, bf16 or f16 -> out (from allocate_quantized; must not overlap x).
// On a GPU everything is on one device and of the stream; nothing waits on the host.
// static_scale  f32 [1]: fp8 and int8 per tensor then use it instead of the maximum.
// global_scale  nvfp4: f32 [1]; when undefined, 448 * 6 / max|x| is computed.
// M == 0 is valid.  Throws InvalidArgument (shape, dtype) or Unsupported (forced implementation).
// The implementation is the first of src/quant/impls.cc that accepts; MOEBIUS_QUANT forces one.
void quantize(const Tensor& x,
              const QuantizeSpec& spec,
              Quantized& out,
              const Stream& stream,
              const Tensor& static_scale = {},
              const Tensor& global_scale = {});
// Allocates the outputs too.
Quantized quantize(const Tensor& x, const QuantizeSpec& spec, const Stream& stream = {});

// out [M, K] f32, bf16 or f16 = the values the quantized data stands for, rounded once.
void dequantize(const Quantized& q,
                const QuantizeSpec& spec,
                const Tensor& out,
                const Stream& stream);

// out = dequantize(quantize(x)) without the intermediate; x and out may be the same tensor.  This
// is how formats the hardware lacks are computed with.
void quantize_dequantize(const Tensor& x,
                         const QuantizeSpec& spec,
                         const Tensor& out,
                         const Stream& stream,
                         const Tensor& static_scale = {},
                         const Tensor& global_scale = {});

// The spec by which an activation with this desc is quantized; nullopt when it is not.
std::optional<QuantizeSpec> activation_spec(const QuantDesc& desc);
// The spec that describes a weight's layout; nullopt when not quantized.
std::optional<QuantizeSpec> weight_spec(const QuantDesc& desc);

// Rows [row_begin, row_end) of expert `local_expert` of a quantized (or plain) weight
// w [L, N, K] as float: out [(row_end - row_begin), K] f32, row-major, without bias.
// `gate_rows` = I for a gated w1 (blocks and global scales restart there), N otherwise.
// activation_gscale: what alpha_or_gscale of an nvfp4 weight was divided by (undefined = 1).
// All on the CPU, by the calling thread.
void dequantize_weight_rows(const Tensor& w,
                            const QuantDesc& desc,
                            int64_t local_expert,
                            int64_t row_begin,
                            int64_t row_end,
                            int64_t gate_rows,
                            float* out,
                            const Tensor& activation_gscale = {});

}  // namespace moebius
