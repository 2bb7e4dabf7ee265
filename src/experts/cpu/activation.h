// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Activations of f32 rows that hold values of a narrower dtype, with the rounding points of
// experts.h.
#pragma once

#include <cstdint>

#include "moebius/experts.h"

namespace moebius::cpu {

// Element i is gate[i * stride] and up[i * stride]; `up` is not read when not gated.
struct GateAndUp {
  const float* gate;
  const float* up;
  int64_t stride = 1;  // 2 for interleaved rows
};

// Sets out[i] to the activation of element i, rounded to `dtype`, for i < n, on the calling thread
// alone.  The bits of out[i] depend on its own inputs only.
void activate(const ActivationSpec& spec, DType dtype, const GateAndUp& in, float* out, int64_t n);

// Sets output [M, I] to the activation of input [M, N]; both are f32, bf16 or f16.
// REQUIRES: the arguments have been validated.
void activate_rows(const ActivationSpec& spec,
                   const Tensor& input,
                   const Tensor& output,
                   const Stream& stream);

}  // namespace moebius::cpu
