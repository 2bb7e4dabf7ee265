// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/expert_gemm.h"

namespace moebius::cuda {

void run_expert_gemm(const ExpertGemm& gemm, const Stream& stream) {
  if (gemm.out.numel() == 0) {
    return;
  }
  if (can_mma_gemm(gemm)) {
    mma_gemm(gemm, stream);
  } else {
    general_gemm(gemm, stream);
  }
}

}  // namespace moebius::cuda
