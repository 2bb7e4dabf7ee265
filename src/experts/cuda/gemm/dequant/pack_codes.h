// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Packs codes of e2m1 in place, so that kernels decode a pair by three instead of four
// instructions.  Experts do so where the weights are their own.
#pragma once

#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::cuda {

// Brings the bits of codes [..., K] to where packed_e2m1.cuh has them.  It only enqueues.
// REQUIRES: the codes are f4e2m1 on the stream's GPU, 4-byte aligned, and K is a multiple of 8.
void pack_codes(const Tensor& codes, const Stream& stream);

}  // namespace moebius::cuda
