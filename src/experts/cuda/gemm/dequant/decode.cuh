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
    // The lowest bits of 128 + c are c, and those of 128 + 8 c are c shifted by three.
    const uint32_t shifted = low >> 1;
    const auto factors = __floats2bfloat162_rn(1.0f, 0.125f);
    const auto less = __floats2bfloat162_rn(-128.0f - zero_point, -16.0f - zero_point);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t bits =
          (__byte_perm(low, shifted, 0x0400 | i * 0x0101) & 0x0078000fu) | 0x43004300u;
      words[i] = bits_of(__hfma2(as_pair<__nv_bfloat162>(bits), factors, less));
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
    // A byte is its low bits, less 128 for negative numbers.  The low bits of 128 + c are c, and
    // with the highest bit of a byte the bits of 128 are those of 256.
    const uint32_t both_words[2] = {low, static_cast<uint32_t>(codes >> 32)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t two = __byte_perm(both_words[i / 2], 0, i % 2 == 0 ? 0x4140 : 0x4342);
      const auto number = __hsub2(as_pair<__nv_bfloat162>((two & 0x007f007fu) | 0x43004300u),
                                  as_pair<__nv_bfloat162>((two & 0x00800080u) | 0x43004300u));
      words[i] = bits_of(__hsub2(number, both(zero_point)));
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
