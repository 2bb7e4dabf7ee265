// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/kernels.h"

#include <algorithm>

#include "core/cpu_features.h"

namespace moebius::cpu {

const CpuKernels& cpu_kernels() {
#ifdef MOEBIUS_HAVE_AVX2
  if (cpu_features().avx2) {
    return avx2_kernels();
  }
#endif
  return portable_kernels();
}

void round_to(const CpuKernels& kernels, DType dtype, float* x, int64_t n) {
  if (dtype == DType::kF32) {
    return;
  }
  constexpr int64_t kChunk = 512;
  uint16_t narrow[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    kernels.narrow(dtype, x + i, narrow, count);
    kernels.widen(dtype, narrow, x + i, count);
  }
}

}  // namespace moebius::cpu
