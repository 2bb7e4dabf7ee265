// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/kernels.h"

#include <algorithm>
#include <cstring>

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

void CpuKernels::widen(DType from, const void* in, float* out, int64_t n) const {
  if (from == DType::kF32) {
    std::memmove(out, in, static_cast<size_t>(n) * sizeof(float));
  } else {
    (from == DType::kBF16 ? widen_bf16 : widen_f16)(static_cast<const uint16_t*>(in), out, n);
  }
}

void CpuKernels::narrow(DType to, const float* in, void* out, int64_t n) const {
  if (to == DType::kF32) {
    std::memmove(out, in, static_cast<size_t>(n) * sizeof(float));
  } else {
    (to == DType::kBF16 ? narrow_bf16 : narrow_f16)(in, static_cast<uint16_t*>(out), n);
  }
}

void CpuKernels::round_to(DType dtype, float* x, int64_t n) const {
  if (dtype == DType::kF32) {
    return;
  }
  constexpr int64_t kChunk = 512;
  uint16_t rounded[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    narrow(dtype, x + i, rounded, count);
    widen(dtype, rounded, x + i, count);
  }
}

}  // namespace moebius::cpu
