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

// Stands for c[i * ldc + j] = sum over k of a[i][k] * b[j * ldb + k], i < m, j < n.
struct DotProducts {
  const float* const* a;
  int64_t m;
  const float* b;
  int64_t ldb;
  int64_t n;
  int64_t k;
  float* c;
  int64_t ldc;
};

struct CpuKernels {
  std::string_view name;

  void (*dot_f32)(const DotProducts& products);

  // 16-bit floats to f32, and back by rounding to nearest even.
  void (*widen_bf16)(const uint16_t* in, float* out, int64_t n);
  void (*widen_f16)(const uint16_t* in, float* out, int64_t n);
  void (*narrow_bf16)(const float* in, uint16_t* out, int64_t n);
  void (*narrow_f16)(const float* in, uint16_t* out, int64_t n);
  // Multiplies bf16 values by a power of two of at least 1: exact up to infinity.
  void (*scale_bf16)(uint16_t* values, float factor, int64_t n);

  // Sets out[i] = x[i] / (1 + exp(-z[i])), within 3 ulp; out may be x or z.
  void (*mul_sigmoid)(const float* x, const float* z, float* out, int64_t n);

  // These take f32, which is copied, bf16 and f16.
  void widen(DType from, const void* in, float* out, int64_t n) const;
  void narrow(DType to, const float* in, void* out, int64_t n) const;
  // Rounds each x[i] to the nearest value of dtype.
  void round_to(DType dtype, float* x, int64_t n) const;
};

// The fastest set that this processor runs.
const CpuKernels& cpu_kernels();
// The set in plain C++.
const CpuKernels& portable_kernels();
#ifdef MOEBIUS_HAVE_AVX2
// REQUIRES: cpu_features().avx2.
const CpuKernels& avx2_kernels();
#endif

}  // namespace moebius::cpu
