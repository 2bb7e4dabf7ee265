// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The formulas of ref/activation.h in kernels.  Exponentials of the
// 16-bit types are a few steps of f32 off, which their rounding hides.
#pragma once

#include <cuda_runtime.h>

#include "core/cuda/floats.cuh"
#include "experts/cuda/row_groups.h"
#include "moebius/experts.h"

namespace moebius::cuda {

// x / (1 + exp(-z)).
__device__ __forceinline__ float times_sigmoid(float, float x, float z) {
  return x / (1.0f + expf(-z));
}
template <typename T>
__device__ __forceinline__ float times_sigmoid(T, float x, float z) {
  return __fdividef(x, 1.0f + __expf(-z));
}

// act(gate), before any rounding.
template <typename T>
__device__ __forceinline__ float activate_gate(Activation kind, float gate) {
  switch (kind) {
    case Activation::kSilu:
      return times_sigmoid(T{}, gate, gate);
    case Activation::kGelu:
      return 0.5f * gate * (1.0f + erff(gate * 0.70710678f));
    default: {  // gelu_tanh: 0.5 (1 + tanh(t)) = sigmoid(2 t)
      const float twice = 1.5957691f * (gate + 0.044715f * gate * gate * gate);
      return times_sigmoid(T{}, gate, twice);
    }
  }
}

// One intermediate value, rounded to T as experts.h says.
template <typename T>
__device__ __forceinline__ float activate_one(const ActivationSpec& spec, float gate, float up) {
  switch (spec.kind) {
    case Activation::kSwigluOai: {
      // Comparisons that NaN passes through, as std::min and std::clamp.
      const float g = spec.limit < gate ? spec.limit : gate;
      const float u = up < -spec.limit ? -spec.limit : spec.limit < up ? spec.limit : up;
      return rounded(T{}, (u + 1.0f) * times_sigmoid(T{}, g, spec.alpha * g));
    }
    case Activation::kRelu2: {
      const float positive = gate < 0.0f ? 0.0f : gate;
      return rounded(T{}, positive * positive);
    }
    default: {
      const float activated = rounded(T{}, activate_gate<T>(spec.kind, gate));
      return spec.gated ? rounded(T{}, activated * up) : activated;
    }
  }
}

// Rows [M, N] in, [M, I] out.
struct ActivationArgs {
  ActivationSpec spec;
  RowGroups rows;
  const void* in;
  void* out;
  int width;     // I
  int in_width;  // N
};

// Gate and up of elements [i, i + kVector) of a row.
template <typename T>
__device__ __forceinline__ void load_halves(
    const ActivationArgs& a, const T* in, int i, float (&gate)[kVector], float (&up)[kVector]) {
  if (!a.spec.interleaved) {
    const Raw8<T> raw_gate = load_raw(in + i);
    if (a.spec.gated) {
      const Raw8<T> raw_up = load_raw(in + a.width + i);
      widen(raw_up, up);
    }
    widen(raw_gate, gate);
    return;
  }
  float low[kVector];
  float high[kVector];
  const Raw8<T> raw_low = load_raw(in + 2 * i);
  const Raw8<T> raw_high = load_raw(in + 2 * i + kVector);
  widen(raw_low, low);
  widen(raw_high, high);
#pragma unroll
  for (int j = 0; j < kVector / 2; ++j) {
    gate[j] = low[2 * j];
    up[j] = low[2 * j + 1];
    gate[j + kVector / 2] = high[2 * j];
    up[j + kVector / 2] = high[2 * j + 1];
  }
}

// Elements [i, i + kVector) of a row's activation.  REQUIRES: in and the widths allow 16-byte
// loads.
template <typename T>
__device__ __forceinline__ void activate_vector(const ActivationArgs& a,
                                                const T* in,
                                                int i,
                                                float (&values)[kVector]) {
  float up[kVector] = {};
  load_halves(a, in, i, values, up);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    values[j] = activate_one<T>(a.spec, values[j], up[j]);
  }
}

}  // namespace moebius::cuda
