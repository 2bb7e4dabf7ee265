// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// apply_activation on a GPU, also for rows in groups.  Nothing waits for the device.
// REQUIRES: the arguments have been validated.
#pragma once

#include "experts/cuda/rows/row_groups.h"
#include "moebius/experts.h"

namespace moebius::cuda {

// Whether the activation is silu(gate) * up, of gate then up.  Most models have it, and it has the
// fastest kernels.
constexpr bool is_plain_silu(const ActivationSpec& spec) {
  return spec.kind == Activation::kSilu && spec.gated && !spec.interleaved;
}

// Sets output [M, I] to the activation of input [M, N] for the rows in use; both are f32, bf16 or
// f16.
void activate(const ActivationSpec& spec,
              const RowGroups& rows,
              const Tensor& input,
              const Tensor& output,
              const Stream& stream);

}  // namespace moebius::cuda
