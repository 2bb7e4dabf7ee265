// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic that takes subnormal operands and results for zeros.  Each function is one
// instruction.
#pragma once

namespace moebius::cuda {

__device__ __forceinline__ float fma_ftz(float a, float b, float c) {
  float d = 0.0f;
  asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
  return d;
}

__device__ __forceinline__ float add_ftz(float a, float b) {
  float d = 0.0f;
  asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}

// 2^x and 1 / x, both with an error within 2 units in the last place.
__device__ __forceinline__ float approximate_exp2_ftz(float x) {
  float y = 0.0f;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float approximate_reciprocal_ftz(float x) {
  float y = 0.0f;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace moebius::cuda
