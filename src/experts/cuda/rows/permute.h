// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Copies rows to where their slots are in an order (core/cuda/slot_order.h), on a GPU.  Nothing
// waits for the device.
// REQUIRES: the arguments have been validated.
#pragma once

#include <cstdint>

#include "core/forward.h"
#include "moebius/tensor.h"

namespace moebius {

struct CudaPermuteArgs {
  Tensor x;            // [M, H]
  Tensor row_of_slot;  // i32 or i64 [M, K]
  Tensor out;          // [N, H]: out[row_of_slot[m, k]] = x[m], where 0 <= row_of_slot[m, k] < N
  // Scales that move in the same way; optional.
  Tensor scale = {};      // [M, G]
  Tensor out_scale = {};  // [N, G]
};

void cuda_permute_rows(const CudaPermuteArgs& args, const Stream& stream);

}  // namespace moebius
