// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The fp8 cast of rows in flight (comm/low_latency/cast.h), done by warps.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "comm/low_latency/cuda/device.cuh"

namespace moebius::comm {

template <typename T>
__device__ __forceinline__ float to_float(T value);
template <>
__device__ __forceinline__ float to_float(uint16_t bf16) {
  return __uint_as_float(static_cast<uint32_t>(bf16) << 16);
}
template <>
__device__ __forceinline__ float to_float(__half value) {
  return __half2float(value);
}
template <>
__device__ __forceinline__ float to_float(float value) {
  return value;
}

// A part of a row that is cast to e4m3.  Each lane has 16 elements of every 512, so 8 lanes have a
// group of 128.
template <typename In>
struct CastPart {
  static constexpr int kUnit = 16;  // bytes of the words that receivers copy
  static constexpr bool kIsCast = true;
  static constexpr int kRounds = kPartElements / 512;
  static constexpr int kLoads = 16 * static_cast<int>(sizeof(In)) / 16;  // per round
  int4 raw[kRounds][kLoads];
  int4 values[kRounds];
  float scales[kRounds];

  __device__ static int first_element(int part, int round) {
    return part * kPartElements + round * 512 + lane_id() * 16;
  }

  __device__ void load(const std::byte* row, int hidden, int part) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int e = first_element(part, i);
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        raw[i][j] =
            e < hidden
                ? __ldg(reinterpret_cast<const int4*>(row + static_cast<int64_t>(e) * sizeof(In)) +
                        j)
                : make_int4(0, 0, 0, 0);
      }
    }
  }

  // The arithmetic of comm/low_latency/cast.cc.
  __device__ void prepare(bool is_ue8m0) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const In* x = reinterpret_cast<const In*>(raw[i]);
      float amax = 1e-4f;
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        amax = fmaxf(amax, fabsf(to_float(x[j])));
      }
#pragma unroll
      for (int step = 1; step < 8; step *= 2) {
        amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, step));
      }
      float scale = amax * (1.0f / 448.0f);
      float inverse = __fdiv_rn(448.0f, amax);
      if (is_ue8m0) {
        // This is the smallest power of two that is not below the scale, which is a normal number.
        scale = __uint_as_float((__float_as_uint(scale) + 0x7fffffu) & 0xff800000u);
        inverse = __fdiv_rn(1.0f, scale);
      }
      scales[i] = scale;
      uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto pair = [&](int at) -> uint32_t {
          return __nv_cvt_float2_to_fp8x2(
              make_float2(to_float(x[at]) * inverse, to_float(x[at + 1]) * inverse), __NV_SATFINITE,
              __NV_E4M3);
        };
        words[j] = pair(4 * j) | pair(4 * j + 2) << 16;
      }
      values[i] = make_int4(static_cast<int>(words[0]), static_cast<int>(words[1]),
                            static_cast<int>(words[2]), static_cast<int>(words[3]));
    }
  }

  // The first kPartElements / 128 lanes get the scale of the group of their number in this part.
  __device__ float own_scale() const {
    float mine = 0.0f;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const float value = __shfl_sync(kAllLanes, scales[i], lane_id() % 4 * 8);
      mine = lane_id() / 4 == i ? value : mine;
    }
    return mine;
  }

  __device__ void store(std::byte* message, int hidden, int part, float own_scale) const {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int e = first_element(part, i);
      if (e < hidden) {
        ptx::st_no_allocate(reinterpret_cast<int4*>(message + e), values[i]);
      }
    }
    const int group = part * (kPartElements / kCastGroup) + lane_id();
    if (lane_id() < kPartElements / kCastGroup && group < hidden / kCastGroup) {
      reinterpret_cast<float*>(message + hidden)[group] = own_scale;
    }
  }
};

// What `visit` returns for the type of an element to cast; a uint16_t stands for a bf16.
template <typename Visit>
auto with_cast_type(DType dtype, const Visit& visit) {
  return dtype == DType::kF32   ? visit(float{})
         : dtype == DType::kF16 ? visit(__half{})
                                : visit(uint16_t{});
}

}  // namespace moebius::comm
