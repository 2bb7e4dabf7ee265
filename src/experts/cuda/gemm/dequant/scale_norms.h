// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The norms (norms.cuh) of the scales of int4 by which kFewRows brings products of code and scale
// into the range of f16 (GemmPlan::folds_int4).  Experts find them when they are made.
#pragma once

#include "experts/cuda/gemm/expert_gemm.h"
#include "moebius/stream.h"

namespace moebius::cuda {

// Sets norms, f32 [G, N], to those of the columns of w.  It only enqueues.
// REQUIRES: the scales of w are f32, bf16 or f16.
void put_scale_norms(const WeightOperand& w, const Tensor& norms, const Stream& stream);

}  // namespace moebius::cuda
