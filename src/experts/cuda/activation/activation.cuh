// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The formulas of ref/activation.h for kernels.  For 16-bit types exponentials are a few steps of
// f32 off, which the rounding of the result hides.
#pragma once

#include <cuda_runtime.h>

#include "core/cuda/floats.cuh"
#include "core/cuda/ftz.cuh"
#include "experts/cuda/activation/activation.h"
#include "experts/cuda/rows/row_groups.h"
#include "moebius/experts.h"

namespace moebius::cuda {

// x / (1 + exp(-z)).
__device__ __forceinline__ float times_sigmoid(float, float x, float z) {
  return x / (1.0f + expf(-z));
}
template <typename T>
__device__ __forceinline__ float times_sigmoid(T, float x, float z) {
  constexpr float kMinusLog2E = -1.44269504f;
  return x * approximate_reciprocal_ftz(1.0f + approximate_exp2_ftz(z * kMinusLog2E));
}

// std::min(x, limit) and std::clamp(x, -limit, limit), which NaN passes through.
__device__ __forceinline__ float at_most(float x, float limit) {
  return limit < x ? limit : x;
}
__device__ __forceinline__ float clamped(float x, float limit) {
  return x < -limit ? -limit : at_most(x, limit);
}

// Returns act(gate) before any rounding.
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

// Computes one value of the intermediate, rounded to T as experts.h says.
template <typename T>
__device__ __forceinline__ float activate_one(const ActivationSpec& spec, float gate, float up) {
  switch (spec.kind) {
    case Activation::kSwigluOai: {
      const float g = at_most(gate, spec.limit);
      const float u = clamped(up, spec.limit);
      return rounded(T{}, (u + spec.beta) * times_sigmoid(T{}, g, spec.alpha * g));
    }
    case Activation::kSwigluStep: {
      const float g = at_most(times_sigmoid(T{}, gate, gate), spec.limit);
      return rounded(T{}, g * clamped(up, spec.limit));
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

// The arguments of kernels that activate rows: in [M, N], out [M, I].
struct ActivationArgs {
  ActivationSpec spec;
  RowGroups rows;
  const void* in;
  void* out;
  int width;     // I
  int in_width;  // N
};

// Loads gate and up of elements [i, i + kVector) of a row.
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

__device__ __forceinline__ uint32_t multiply_pair(BFloat16, uint32_t a, uint32_t b) {
  return bits_of(__hmul2(as_pair<__nv_bfloat162>(a), as_pair<__nv_bfloat162>(b)));
}
__device__ __forceinline__ uint32_t multiply_pair(Float16, uint32_t a, uint32_t b) {
  return bits_of(__hmul2(as_pair<__half2>(a), as_pair<__half2>(b)));
}

// Computes round(round(silu(gate)) * up) for a pair.  A product of two 16-bit numbers is exact in
// f32, so the instruction that multiplies a pair gives the same as rounding that product.
template <typename T>
__device__ __forceinline__ uint32_t silu_pair(uint32_t gate, uint32_t up) {
  const float2 g = widen_pair(T{}, gate);
  return multiply_pair(
      T{}, narrow_pair(T{}, times_sigmoid(T{}, g.x, g.x), times_sigmoid(T{}, g.y, g.y)), up);
}

template <typename T>
__device__ __forceinline__ Raw8<T> as_raw(const float (&v)[kVector]) {
  Raw8<T> raw;
  raw.words[0] = make_uint4(narrow_pair(T{}, v[0], v[1]), narrow_pair(T{}, v[2], v[3]),
                            narrow_pair(T{}, v[4], v[5]), narrow_pair(T{}, v[6], v[7]));
  return raw;
}
template <>
__device__ __forceinline__ Raw8<float> as_raw<float>(const float (&v)[kVector]) {
  Raw8<float> raw;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    raw.words[i] = make_uint4(__float_as_uint(v[4 * i]), __float_as_uint(v[4 * i + 1]),
                              __float_as_uint(v[4 * i + 2]), __float_as_uint(v[4 * i + 3]));
  }
  return raw;
}

// Computes elements [i, i + kVector) of a row's activation.  kIsPlainSilu is for silu(gate) * up of
// gate then up in a 16-bit type, and takes half the instructions: at the speed of memory there is
// time for few per element.
// REQUIRES: in and the widths allow 16-byte loads.
template <bool kIsPlainSilu, typename T>
__device__ __forceinline__ Raw8<T> activate_vector(const ActivationArgs& a, const T* in, int i) {
  if constexpr (kIsPlainSilu) {
    const uint4 gate = load_raw(in + i).words[0];
    const uint4 up = load_raw(in + a.width + i).words[0];
    Raw8<T> out;
    out.words[0] = make_uint4(silu_pair<T>(gate.x, up.x), silu_pair<T>(gate.y, up.y),
                              silu_pair<T>(gate.z, up.z), silu_pair<T>(gate.w, up.w));
    return out;
  } else {
    float values[kVector];
    float up[kVector] = {};
    load_halves(a, in, i, values, up);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      values[j] = activate_one<T>(a.spec, values[j], up[j]);
    }
    return as_raw<T>(values);
  }
}

// Whether, and by which formula, a kernel activates rows as it loads them.
enum class Activates : uint8_t { kNo, kPlainSilu, kAny };

// Loads elements [i, i + kVector) of a row, or of its activation.  kPlainSilu is for 16-bit types.
template <Activates kActivates, typename T>
__device__ __forceinline__ Raw8<T> load_activated(const ActivationArgs& a, const T* in, int i) {
  if constexpr (kActivates == Activates::kNo) {
    return load_raw(in + i);
  } else {
    return activate_vector<kActivates == Activates::kPlainSilu>(a, in, i);
  }
}

template <typename T>
bool is_plain_silu(const ActivationSpec& spec) {
  return sizeof(T) == 2 && is_plain_silu(spec);
}

}  // namespace moebius::cuda
