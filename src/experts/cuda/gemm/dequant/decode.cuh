// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How a thread decodes weights to bf16 or f16, eight elements at a time.
#pragma once

#include "experts/cuda/gemm/dequant/decode_args.h"
#include "experts/cuda/gemm/dequant/packed_e2m1.cuh"
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

__device__ __forceinline__ __nv_bfloat162 both(BFloat16, float value) {
  return __float2bfloat162_rn(value);
}
__device__ __forceinline__ __half2 both(Float16, float value) {
  return __float2half2_rn(value);
}

// The functions that follow set `words` to pairs of code - zero_point or of code * scale, which are
// exact.  Why in pairs, and why codes become numbers by their bits: at the speed of memory a thread
// has time for some 15 instructions per eight elements.
__device__ __forceinline__ void decode_u4(BFloat16,
                                          uint32_t low,
                                          float zero_point,
                                          uint32_t (&words)[4]) {
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
}
__device__ __forceinline__ void decode_u4(Float16,
                                          uint32_t low,
                                          float zero_point,
                                          uint32_t (&words)[4]) {
  // The lowest bits of 1024 + c are c, and those of 1024 + 16 c are c shifted by four.
  const auto factors = __floats2half2_rn(1.0f, 0.0625f);
  const auto less = __floats2half2_rn(-1024.0f - zero_point, -64.0f - zero_point);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t bits = (__byte_perm(low, 0, i * 0x0101) & 0x00f0000fu) | 0x64006400u;
    words[i] = bits_of(__hfma2(as_pair<__half2>(bits), factors, less));
  }
}

// Bytes of magnitudes come from tables, and signs from the highest bits of bytes.
__device__ __forceinline__ uint32_t e2m1_signs(uint32_t even, uint32_t low, int i) {
  return __byte_perm(even, low, (4 + i) << 12 | i << 4) & 0x80008000u;
}
__device__ __forceinline__ void decode_e2m1(BFloat16,
                                            uint32_t low,
                                            float scale,
                                            uint32_t (&words)[4]) {
  const uint32_t even = low << 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t four = low >> (16 * half) & 0x7777u;
    const uint32_t lower = __byte_perm(0xc0800000u, 0xc0804000u, four);
    const uint32_t upper = __byte_perm(0x3f3f3f00u, 0x40404040u, four);
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      const uint32_t magnitudes = __byte_perm(lower, upper, i % 2 == 0 ? 0x5140 : 0x7362);
      words[i] = bits_of(__hmul2(as_pair<__nv_bfloat162>(magnitudes | e2m1_signs(even, low, i)),
                                 both(BFloat16{}, scale)));
    }
  }
}
__device__ __forceinline__ void decode_e2m1(Float16,
                                            uint32_t low,
                                            float scale,
                                            uint32_t (&words)[4]) {
  const uint32_t even = low << 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t four = low >> (16 * half) & 0x7777u;
    const uint32_t upper = __byte_perm(0x3e3c3800u, 0x46444240u, four);  // the lower bytes are 0
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      const uint32_t magnitudes = __byte_perm(upper, 0, i % 2 == 0 ? 0x1404 : 0x3424);
      words[i] = bits_of(
          __hmul2(as_pair<__half2>(magnitudes | e2m1_signs(even, low, i)), both(Float16{}, scale)));
    }
  }
}

// This decodes packed codes (packed_e2m1.cuh).  It takes two products, since the factor of 2^126
// and a scale together may be more than bf16 holds.
__device__ __forceinline__ void decode_packed_e2m1(uint32_t low,
                                                   float scale,
                                                   uint32_t (&words)[4]) {
  uint32_t pairs[4];
  packed_e2m1::to_pairs(low, pairs);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 values =
        __hmul2(as_pair<__nv_bfloat162>(pairs[i]), both(BFloat16{}, 0x1p126f));
    words[packed_e2m1::first_code(i) / 2] = bits_of(__hmul2(values, both(BFloat16{}, scale)));
  }
}

// Two bytes of int8 codes, each in the lower half of 16 bits.
__device__ __forceinline__ uint32_t two_bytes(uint64_t codes, int i) {
  const uint32_t both_words[2] = {static_cast<uint32_t>(codes), static_cast<uint32_t>(codes >> 32)};
  return __byte_perm(both_words[i / 2], 0, i % 2 == 0 ? 0x4140 : 0x4342);
}
__device__ __forceinline__ void decode_i8(BFloat16,
                                          uint64_t codes,
                                          float zero_point,
                                          uint32_t (&words)[4]) {
  // A byte is its low bits, less 128 for negative numbers.  The low bits of 128 + c are c, and
  // with the highest bit of a byte the bits of 128 are those of 256.
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t two = two_bytes(codes, i);
    const auto number = __hsub2(as_pair<__nv_bfloat162>((two & 0x007f007fu) | 0x43004300u),
                                as_pair<__nv_bfloat162>((two & 0x00800080u) | 0x43004300u));
    words[i] = bits_of(__hsub2(number, both(BFloat16{}, zero_point)));
  }
}
__device__ __forceinline__ void decode_i8(Float16,
                                          uint64_t codes,
                                          float zero_point,
                                          uint32_t (&words)[4]) {
  // With the highest bit flipped, a code is 128 larger and not negative.  The low bits of 1024 + c
  // are c.
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t bits = two_bytes(codes, i) ^ 0x64806480u;
    words[i] = bits_of(__hsub2(as_pair<__half2>(bits), both(Float16{}, 1152.0f + zero_point)));
  }
}

// Computes (code - zero_point) * scale in pairs of T, which is exact.  kIsPacked: see WeightArgs.
template <typename T, Code kCode, bool kIsPacked = false>
__device__ __forceinline__ uint4 decode_vector(uint64_t codes, float zero_point, float scale) {
  uint32_t words[4];
  if constexpr (kCode == Code::kU4) {
    decode_u4(T{}, static_cast<uint32_t>(codes), zero_point, words);
  } else if constexpr (kIsPacked) {
    static_assert(kCode == Code::kE2M1 && std::is_same_v<T, BFloat16>);
    decode_packed_e2m1(static_cast<uint32_t>(codes), scale, words);
  } else if constexpr (kCode == Code::kE2M1) {
    decode_e2m1(T{}, static_cast<uint32_t>(codes), scale, words);
  } else if constexpr (kCode == Code::kI8) {
    decode_i8(T{}, codes, zero_point, words);
  } else {
    float v[kVector];
    quant::device::decode8_as<kCode>(codes, v);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = narrow_pair(T{}, v[2 * i] * scale, v[2 * i + 1] * scale);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The byte that a block has beside its codes is a scale that folds, else a zero point, if any.
__device__ __forceinline__ float scale_of(const DecodeArgs& p, uint8_t byte) {
  if (!p.folds) {
    return 1.0f;
  }
  return p.w.scale_dtype == DType::kE8M0 ? e8m0_to_float(byte) : e4m3_scale(p.w, byte);
}
__device__ __forceinline__ float zero_point_of(const DecodeArgs& p, uint8_t byte) {
  return !p.folds && p.w.zero_point != nullptr ? static_cast<float>(byte) - p.w.zero_point_offset
                                               : p.w.default_zero_point;
}

}  // namespace moebius::cuda
