// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernels are plain loops over a fixed number of lanes, which compilers turn into the vectors
// of the target.
#include <bit>
#include <cmath>

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

void dot_f32(const DotProducts& p) {
  for (int64_t j = 0; j < p.n; ++j) {
    for (int64_t i = 0; i < p.m; ++i) {
      p.c[i * p.ldc + j] = dot(p.a[i], p.b + j * p.ldb, p.k);
    }
  }
}

template <typename T>
void widen(const uint16_t* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<float>(std::bit_cast<T>(in[i]));
  }
}

template <typename T>
void narrow(const float* in, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = T(in[i]).bits;
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
  static constexpr CpuKernels kKernels = {"portable",     dot_f32,          widen<BFloat16>,
                                          widen<Float16>, narrow<BFloat16>, narrow<Float16>,
                                          scale_bf16,     mul_sigmoid};
  return kKernels;
}

}  // namespace moebius::cpu
