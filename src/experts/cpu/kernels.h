// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Single-threaded inner loops of the CPU experts, one set per instruction set.
// Each dot product is summed in an order that depends on k alone, so an element of C does not
// depend on the other rows and columns of a call.  The sets differ from each other in the last
// bits.
#pragma once

#include <cstdint>
#include <string_view>

#include "moebius/dtype.h"

namespace moebius::cpu {

struct CpuKernels {
  std::string_view name;

  // c[i * ldc + j] = sum over k of a[i][k] * b[j * ldb + k], i < m, j < n.
  void (*dot_f32)(const float* const* a,
                  int64_t m,
                  const float* b,
                  int64_t ldb,
                  int64_t n,
                  int64_t k,
                  float* c,
                  int64_t ldc);

  // f32, bf16 or f16 to f32, and back by rounding to nearest even.
  void (*widen)(DType from, const void* in, float* out, int64_t n);
  void (*narrow)(DType to, const float* in, void* out, int64_t n);
  // bf16 values times a power of two, of at least 1: exact up to infinity.
  void (*scale_bf16)(uint16_t* values, float factor, int64_t n);

  // out[i] = x[i] / (1 + exp(-z[i])), within 3 ulp; out may be x or z.
  void (*mul_sigmoid)(const float* x, const float* z, float* out, int64_t n);
};

// The best set for this processor.
const CpuKernels& cpu_kernels();
// Plain C++.
const CpuKernels& portable_kernels();
#ifdef MOEBIUS_HAVE_AVX2
// REQUIRES: cpu_features().avx2.
const CpuKernels& avx2_kernels();
#endif

// x[i] = the nearest value of dtype.
void round_to(const CpuKernels& kernels, DType dtype, float* x, int64_t n);

}  // namespace moebius::cpu
