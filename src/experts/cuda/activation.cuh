// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The formulas of ref/activation.h in kernels.  Exponentials of the
// 16-bit types are a few steps of f32 off, which their rounding hides.
#pragma once

#include <cuda_runtime.h>

#include "core/cuda/floats.cuh"
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

}  // namespace moebius::cuda
