// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How a thread decodes weights to bf16, eight elements at a time.
#pragma once

#include "experts/cuda/gemm/dequant/decode_args.h"
#include "experts/cuda/gemm/weight_values.cuh"

namespace moebius::cuda {

using quant::Code;

__device__ __forceinline__ float decoded_column_scale(const DecodeArgs& p, int group, int n) {
  float factor = 1.0f;
  if (!p.folds && p.num_blocks == 0) {
    factor = weight_scale(p.w, scale_row(p.w, group, n));
  } else if (p.w.scale_dtype == DType::kF8E4M3) {
    factor = global_factor(p.w, group, n);
  }
  if (p.a.scales == RowScales::kAll || p.a.scales == RowScales::kPerGroup) {
    const float scale = p.a.scale[p.a.scales == RowScales::kPerGroup ? group : 0];
    factor *= p.a.divides ? 1.0f / scale : scale;
  }
  return factor;
}

__device__ __forceinline__ __nv_bfloat162 both(float value) {
  return __float2bfloat162_rn(value);
}

// Computes (code - zero_point) * scale in pairs, which is exact.  Why in pairs, and why codes
// become numbers by their bits: at the speed of memory a thread has time for some 15 instructions
// per eight elements.
template <Code kCode>
__device__ __forceinline__ uint4 decode_vector(uint64_t codes, float zero_point, float scale) {
  const auto low = static_cast<uint32_t>(codes);
  uint32_t words[4];
  if constexpr (kCode == Code::kU4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // The lowest bits of 128 + c are c.
      const uint32_t two = low >> (8 * i);
      const uint32_t bits = (two & 0xfu) | (two << 12 & 0xf0000u) | 0x43004300u;
      words[i] = bits_of(__hsub2(as_pair<__nv_bfloat162>(bits), both(128.0f + zero_point)));
    }
  } else if constexpr (kCode == Code::kE2M1) {
    // Bytes of magnitudes come from tables, and signs from the highest bits of bytes.
    const uint32_t even = low << 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t four = low >> (16 * half) & 0x7777u;
      const uint32_t lower = __byte_perm(0xc0800000u, 0xc0804000u, four);
      const uint32_t upper = __byte_perm(0x3f3f3f00u, 0x40404040u, four);
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        const uint32_t magnitudes = __byte_perm(lower, upper, i % 2 == 0 ? 0x5140 : 0x7362);
        const uint32_t signs = __byte_perm(even, low, (4 + i) << 12 | i << 4) & 0x80008000u;
        words[i] = bits_of(__hmul2(as_pair<__nv_bfloat162>(magnitudes | signs), both(scale)));
      }
    }
  } else if constexpr (kCode == Code::kI8) {
    // The lowest byte of 2^23 + c is c, and these sums are exact.
    const float zero = 0x1p23f + 128.0f + zero_point;
    const uint32_t bytes[2] = {low ^ 0x80808080u, static_cast<uint32_t>(codes >> 32) ^ 0x80808080u};
    const auto number = [&](int j) {
      return __uint_as_float(__byte_perm(bytes[j / 4], 0x4b000000u, 0x7540 | j % 4)) - zero;
    };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = narrow_pair(BFloat16{}, number(2 * i), number(2 * i + 1));
    }
  }
  if constexpr (kCode != Code::kU4 && kCode != Code::kE2M1 && kCode != Code::kI8) {
    float v[kVector];
    quant::device::decode8_as<kCode>(codes, v);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = narrow_pair(BFloat16{}, v[2 * i] * scale, v[2 * i + 1] * scale);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The byte that a block has beside its codes is a scale that folds, else a zero point, if any.
__device__ __forceinline__ float scale_of(const DecodeArgs& p, uint8_t byte) {
  if (!p.folds) {
    return 1.0f;
  }
  return p.w.scale_dtype == DType::kE8M0 ? e8m0_to_float(byte)
                                         : quant::device::decode1(Code::kE4M3, byte);
}
__device__ __forceinline__ float zero_point_of(const DecodeArgs& p, uint8_t byte) {
  return !p.folds && p.w.zero_point != nullptr ? static_cast<float>(byte) - p.w.zero_point_offset
                                               : p.w.default_zero_point;
}

}  // namespace moebius::cuda
