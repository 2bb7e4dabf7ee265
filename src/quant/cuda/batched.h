// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// quantize() for batched rows on a GPU: those of each expert that are in use, as many as a count on
// the device says.  The bits of quantize() on x[e].slice(0, counts[e]).
#pragma once

#include "moebius/quantize.h"

namespace moebius::quant {

struct BatchedQuantize {
  Tensor x;       // [L, max_rows, H] f32, bf16 or f16
  Tensor counts;  // i32 [L]; outside [0, max_rows] they count as the nearest
  QuantizeSpec spec;
  // f32 [1] or [L], undefined: from the rows.  The scale (per tensor), or nvfp4's global scale.
  Tensor tensor_scale;
  Tensor values;  // [L, max_rows, H]
  Tensor scale;   // per tensor f32 [L, 1, 1], else [L, max_rows, groups of a row]
};

// REQUIRES: valid arguments on the stream's device; groups within a row or a whole tensor; not
// asymmetric; nvfp4 with a global scale.  Nothing waits.  Throws Unsupported without CUDA.
void cuda_quantize_batched(const BatchedQuantize& args, const Stream& stream);

}  // namespace moebius::quant
