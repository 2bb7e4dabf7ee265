// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// cuBLASLt as a comparison, where the loader finds it (libcublasLt.so.13).
#pragma once

#include <functional>

#include "experts/cuda/gemm/grouped_gemm.h"

namespace moebius::bench {

// out = a b^T for groups of equal size, in one batched call.  f8e4m3 without block scales: what the
// tensor cores do at most.  Empty where the library is missing or knows no way.
std::function<void()> cublas_even_groups(const cuda::GroupedGemm& gemm, const Stream& stream);

}  // namespace moebius::bench
