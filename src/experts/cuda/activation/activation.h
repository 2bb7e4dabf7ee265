// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// apply_activation on a GPU, for rows in groups too.  Arguments are validated; nothing waits for
// the device.
#pragma once

#include "experts/cuda/rows/row_groups.h"
#include "moebius/experts.h"

namespace moebius::cuda {

// silu(gate) * up, of gate then up: what most models have, and the fastest kernels.
constexpr bool is_plain_silu(const ActivationSpec& spec) {
  return spec.kind == Activation::kSilu && spec.gated && !spec.interleaved;
}

// output [M, I] = activation of input [M, N] for the rows in use; both f32, bf16 or f16.
void activate(const ActivationSpec& spec,
              const RowGroups& rows,
              const Tensor& input,
              const Tensor& output,
              const Stream& stream);

}  // namespace moebius::cuda
