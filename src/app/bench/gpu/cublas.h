// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// cuBLASLt as a comparison, where the loader finds its library (libcublasLt.so.13).
#pragma once

#include <functional>

#include "experts/cuda/gemm/grouped_gemm.h"

namespace moebius::bench {

// Returns a function that computes out = a b^T for groups of equal size, in one batched call.
// f8e4m3 is multiplied without block scales, which is the most that the tensor cores can do.  The
// result is empty where the library is missing or has no algorithm for it.
std::function<void()> cublas_even_groups(const cuda::GroupedGemm& gemm, const Stream& stream);

}  // namespace moebius::bench
