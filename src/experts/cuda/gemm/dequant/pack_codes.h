// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Packs codes of e2m1 in place, so that kernels make bf16 of a pair by fewer instructions, and
// nvfp4's scales with them.  Experts do so where the weights are their own.
#pragma once

#include "experts/cuda/gemm/expert_gemm.h"
#include "moebius/stream.h"

namespace moebius::cuda {

// Brings the bits of codes [G, N, K] to where packed_e2m1.cuh has them, and those of scales in e4m3
// [G, N, K / 16] to where packed_e4m3.cuh has them.  It only enqueues.
// REQUIRES: w.is_packed, which kernels go by then; the codes are f4e2m1 on the stream's GPU, 4-byte
// aligned, and K is a multiple of 16.
void pack_codes(const WeightOperand& w, const Stream& stream);

}  // namespace moebius::cuda
