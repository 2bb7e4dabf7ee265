// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// apply_activation on a GPU, for rows in groups too.  Arguments are validated; nothing waits for
// the device.
#pragma once

#include "experts/cuda/row_groups.h"
#include "moebius/experts.h"

namespace moebius::cuda {

// output [M, I] = activation of input [M, N] for the rows in use; both f32, bf16 or f16.
void activate(const ActivationSpec& spec,
              const RowGroups& rows,
              const Tensor& input,
              const Tensor& output,
              const Stream& stream);

}  // namespace moebius::cuda
