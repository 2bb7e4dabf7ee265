// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Accesses to f32, bf16 and f16 in kernels: one element, or eight elements in units of 16 bytes.
// The hardware's conversions round to nearest even, and NaN stays some NaN.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "moebius/dtype.h"

namespace moebius::cuda {

inline constexpr int kVector = 8;

// Eight elements as they are in memory.  Why loading and converting are separate: a kernel first
// loads all it can hold and then computes.
template <typename T>
struct Raw8 {
  uint4 words[sizeof(T) * kVector / 16];
};

template <typename T>
__device__ __forceinline__ Raw8<T> load_raw(const T* p) {
  Raw8<T> raw;
  const auto* from = reinterpret_cast<const uint4*>(p);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(raw.words) / sizeof(uint4)); ++i) {
    raw.words[i] = from[i];
  }
  return raw;
}

__device__ __forceinline__ void widen(const Raw8<float>& raw, float (&v)[kVector]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    v[4 * i] = __uint_as_float(raw.words[i].x);
    v[4 * i + 1] = __uint_as_float(raw.words[i].y);
    v[4 * i + 2] = __uint_as_float(raw.words[i].z);
    v[4 * i + 3] = __uint_as_float(raw.words[i].w);
  }
}

// These reinterpret a word as two 16-bit elements, and back.
template <typename Pair>
__device__ __forceinline__ Pair as_pair(uint32_t bits) {
  Pair pair;
  memcpy(&pair, &bits, sizeof(bits));
  return pair;
}
template <typename Pair>
__device__ __forceinline__ uint32_t bits_of(const Pair& pair) {
  uint32_t bits = 0;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

__device__ __forceinline__ float2 widen_pair(BFloat16, uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
__device__ __forceinline__ float2 widen_pair(Float16, uint32_t pair) {
  return __half22float2(as_pair<__half2>(pair));
}

__device__ __forceinline__ uint32_t narrow_pair(BFloat16, float low, float high) {
  return bits_of(__floats2bfloat162_rn(low, high));
}
__device__ __forceinline__ uint32_t narrow_pair(Float16, float low, float high) {
  return bits_of(__floats2half2_rn(low, high));
}

template <typename T>
__device__ __forceinline__ void widen(const Raw8<T>& raw, float (&v)[kVector]) {
  const uint32_t pairs[] = {raw.words[0].x, raw.words[0].y, raw.words[0].z, raw.words[0].w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = widen_pair(T{}, pairs[i]);
    v[2 * i] = pair.x;
    v[2 * i + 1] = pair.y;
  }
}

// The largest |element|; NaN elements are skipped.
__device__ __forceinline__ float absmax(const Raw8<float>& raw) {
  float v[kVector];
  widen(raw, v);
  float max = 0.0f;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    max = fmaxf(max, fabsf(v[i]));
  }
  return max;
}

__device__ __forceinline__ uint32_t max_pair(BFloat16, uint32_t a, uint32_t b) {
  return bits_of(__hmax2(as_pair<__nv_bfloat162>(a), as_pair<__nv_bfloat162>(b)));
}
__device__ __forceinline__ uint32_t max_pair(Float16, uint32_t a, uint32_t b) {
  return bits_of(__hmax2(as_pair<__half2>(a), as_pair<__half2>(b)));
}

// Why it works on pairs: they halve the instructions, and a kernel at memory speed has few to
// spare.
template <typename T>
__device__ __forceinline__ float absmax(const Raw8<T>& raw) {
  constexpr uint32_t kMagnitudes = 0x7fff7fffu;
  const uint32_t low = max_pair(T{}, raw.words[0].x & kMagnitudes, raw.words[0].y & kMagnitudes);
  const uint32_t high = max_pair(T{}, raw.words[0].z & kMagnitudes, raw.words[0].w & kMagnitudes);
  const float2 max = widen_pair(T{}, max_pair(T{}, low, high));
  return fmaxf(fmaxf(max.x, max.y), 0.0f);
}

__device__ __forceinline__ void store8(float* p, const float (&v)[kVector]) {
  reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}
template <typename T>
__device__ __forceinline__ void store8(T* p, const float (&v)[kVector]) {
  *reinterpret_cast<uint4*>(p) =
      make_uint4(narrow_pair(T{}, v[0], v[1]), narrow_pair(T{}, v[2], v[3]),
                 narrow_pair(T{}, v[4], v[5]), narrow_pair(T{}, v[6], v[7]));
}

__device__ __forceinline__ float load1(const float* p) {
  return *p;
}
template <typename T>
__device__ __forceinline__ float load1(const T* p) {
  return widen_pair(T{}, p->bits).x;
}

__device__ __forceinline__ void store1(float* p, float v) {
  *p = v;
}
template <typename T>
__device__ __forceinline__ void store1(T* p, float v) {
  p->bits = static_cast<uint16_t>(narrow_pair(T{}, v, v));
}

// The value that load1 gives after store1.
__device__ __forceinline__ float rounded(float, float v) {
  return v;
}
__device__ __forceinline__ float rounded(BFloat16, float v) {
  return __bfloat162float(__float2bfloat16_rn(v));
}
__device__ __forceinline__ float rounded(Float16, float v) {
  return __half2float(__float2half_rn(v));
}

// Calls fn(T{}) with the type of the dtype.  REQUIRES: the dtype is f32, bf16 or f16.
template <typename Fn>
void visit_float(DType dtype, const Fn& fn) {
  dtype == DType::kF32 ? fn(float{}) : dtype == DType::kBF16 ? fn(BFloat16{}) : fn(Float16{});
}

inline bool is_aligned(const void* p, size_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

// Returns the largest number of so many neighbouring lanes, a power of two.  All lanes call it.
__device__ __forceinline__ float largest_of_lanes(float v, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
  }
  return v;
}

}  // namespace moebius::cuda
