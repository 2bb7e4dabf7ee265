// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Activations over f32 rows that hold values of a narrower dtype, with the rounding points of
// experts.h.
#pragma once

#include <cstdint>

#include "experts/cpu/kernels.h"
#include "moebius/experts.h"

namespace moebius::cpu {

// Single-threaded: out[i] = activation of gate[i * stride] and up[i * stride], rounded to `dtype`,
// for i < n. stride is 2 for interleaved rows, else 1; `up` is not read when not gated.  Bits of
// out[i] depend on its own inputs only.
void activate(const CpuKernels& kernels,
              const ActivationSpec& spec,
              DType dtype,
              const float* gate,
              const float* up,
              int64_t stride,
              float* out,
              int64_t n);

// output [M, I] = activation of input [M, N]; both f32, bf16 or f16.  Arguments are validated.
void activate_rows(const ActivationSpec& spec,
                   const Tensor& input,
                   const Tensor& output,
                   const Stream& stream);

}  // namespace moebius::cpu
