// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of grouped_gemm.h for Hopper in a build without CUDA.
#include "experts/cuda/gemm/grouped_gemm.h"

namespace moebius::cuda {

Support sm90_grouped_gemm_supports(const GroupedGemm&) {
  return Support::no("this build has no CUDA");
}

void sm90_grouped_gemm(const GroupedGemm& gemm, const Stream&) {
  expect_usable(gemm.a.device());
}

}  // namespace moebius::cuda
