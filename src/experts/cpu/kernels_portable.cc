// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Plain loops over fixed lanes, which compilers turn into whatever vectors the target has.
#include <bit>
#include <cmath>
#include <cstring>

#include "experts/cpu/kernels.h"
#include "moebius/float_types.h"

namespace moebius::cpu {

namespace {

constexpr int kLanes = 8;

float dot(const float* a, const float* b, int64_t k) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      lanes[l] += a[i + l] * b[i + l];
    }
  }
  float sum = 0;
  for (const float lane : lanes) {
    sum += lane;
  }
  for (; i < k; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

void dot_f32(const float* const* a,
             int64_t m,
             const float* b,
             int64_t ldb,
             int64_t n,
             int64_t k,
             float* c,
             int64_t ldc) {
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < m; ++i) {
      c[i * ldc + j] = dot(a[i], b + j * ldb, k);
    }
  }
}

template <typename T>
void widen_from(const void* in, float* out, int64_t n) {
  const T* values = static_cast<const T*>(in);
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<float>(values[i]);
  }
}

template <typename T>
void narrow_to(const float* in, void* out, int64_t n) {
  T* values = static_cast<T*>(out);
  for (int64_t i = 0; i < n; ++i) {
    values[i] = T(in[i]);
  }
}

void widen(DType from, const void* in, float* out, int64_t n) {
  switch (from) {
    case DType::kBF16:
      return widen_from<BFloat16>(in, out, n);
    case DType::kF16:
      return widen_from<Float16>(in, out, n);
    default:
      std::memmove(out, in, static_cast<size_t>(n) * sizeof(float));
  }
}

void narrow(DType to, const float* in, void* out, int64_t n) {
  switch (to) {
    case DType::kBF16:
      return narrow_to<BFloat16>(in, out, n);
    case DType::kF16:
      return narrow_to<Float16>(in, out, n);
    default:
      std::memmove(out, in, static_cast<size_t>(n) * sizeof(float));
  }
}

void scale_bf16(uint16_t* values, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float product = std::bit_cast<float>(uint32_t{values[i]} << 16) * factor;
    values[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(product) >> 16);
  }
}

void mul_sigmoid(const float* x, const float* z, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = x[i] / (1.0f + std::exp(-z[i]));
  }
}

}  // namespace

const CpuKernels& portable_kernels() {
  static constexpr CpuKernels kKernels = {"portable", dot_f32,    widen,
                                          narrow,     scale_bf16, mul_sigmoid};
  return kKernels;
}

}  // namespace moebius::cpu
