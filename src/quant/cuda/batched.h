// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// quantize() for rows in the batched format on a GPU.  It quantizes the rows of each expert that
// are in use, as counts on the device say, with the bits of quantize() on x[e].slice(0, counts[e]).
#pragma once

#include "moebius/quantize.h"

namespace moebius::quant {

struct BatchedQuantize {
  Tensor x;       // [L, max_rows, H] f32, bf16 or f16
  Tensor counts;  // i32 [L], clamped to [0, max_rows]
  QuantizeSpec spec;
  // f32 [1] or [L]: the scale (per tensor) or nvfp4's global scale.  When it is undefined, the
  // scale per tensor is computed from the rows.
  Tensor tensor_scale;
  Tensor values;  // [L, max_rows, H]
  Tensor scale;   // per tensor f32 [L, 1, 1], else [L, max_rows, groups of a row]
};

// REQUIRES: the arguments are valid and on the stream's device; groups lie within a row or are a
// whole tensor; the spec is not asymmetric; nvfp4 has a global scale.
// The host does not wait.  Throws Unsupported in a build without CUDA.
void cuda_quantize_batched(const BatchedQuantize& args, const Stream& stream);

}  // namespace moebius::quant
