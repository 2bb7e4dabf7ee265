// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernel is bound by memory: an element of 4-bit codes moves 2.5 bytes.
#include <algorithm>

#include "core/cuda/check.h"
#include "experts/cuda/gemm/dequant/decode_weights.h"
#include "experts/cuda/gemm/weight_values.cuh"
#include "experts/cuda/rows/row_groups.cuh"
#include "quant/decoded_room.h"
#include "quant/group_rule.h"

namespace moebius::cuda {

namespace {

using quant::Code;

// A block has kAcross threads for the vectors of a row, and kDown rows.  It is as large as it may
// be, since with a limit of SMs each of them has one block.
constexpr int kAcross = 64;
constexpr int kDown = 16;
constexpr int kBlocksPerSm = 2;
constexpr int kHeld = 4;  // vectors of a row that a thread requests at once

struct Args {
  WeightArgs w;
  RowArgs a;
  RowGroups rows;
  bool folds;              // block scales go into the elements, else column_scale or block_scale
  int num_blocks;          // rows of block_scale
  uint32_t block_inverse;  // 2^32 / vectors of a block, rounded up
  BFloat16* out;
  float* column_scale;
  float* block_scale;
  int first;  // the first group
  int n;
  int k;
};

__device__ __forceinline__ float column_scale(const Args& p, int group, int n) {
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

// Elements 2 i and 2 i + 1 of eight e2m1, in bf16 without their signs.  Their bytes come from
// tables.
__device__ __forceinline__ uint32_t e2m1_magnitudes(uint32_t codes, int i) {
  const uint32_t four = codes >> (i / 2 * 16) & 0x7777u;
  const uint32_t low = __byte_perm(0xc0800000u, 0xc0804000u, four);
  const uint32_t high = __byte_perm(0x3f3f3f00u, 0x40404040u, four);
  return __byte_perm(low, high, i % 2 == 0 ? 0x5140 : 0x7362);
}

// Computes (code - zero_point) * scale in pairs, which is exact.  Why in pairs, and why codes
// become numbers by their bits: at the speed of memory a thread has time for some 15 instructions
// per eight elements.
template <Code kCode>
__device__ __forceinline__ uint4 decode_vector(uint64_t codes, float zero_point, float scale) {
  const auto low = static_cast<uint32_t>(codes);
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kCode == Code::kU4) {
      // The lowest bits of 128 + c are c.
      const uint32_t two = low >> (8 * i);
      const uint32_t bits = (two & 0xfu) | (two << 12 & 0xf0000u) | 0x43004300u;
      words[i] = bits_of(__hsub2(as_pair<__nv_bfloat162>(bits), both(128.0f + zero_point)));
    } else if constexpr (kCode == Code::kE2M1) {
      const uint32_t two = low >> (8 * i);
      const uint32_t signs = (two << 12 & 0x8000u) | (two << 24 & 0x80000000u);
      words[i] =
          bits_of(__hmul2(as_pair<__nv_bfloat162>(e2m1_magnitudes(low, i) | signs), both(scale)));
    } else if constexpr (kCode == Code::kI8) {
      // The lowest byte of 2^23 + c is c.
      const auto number = [&](int j) {
        const auto byte = static_cast<uint32_t>(codes >> (8 * j)) & 0xffu;
        return __uint_as_float((byte ^ 0x80u) | 0x4b000000u) - (0x1p23f + 128.0f) - zero_point;
      };
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
__device__ __forceinline__ float scale_of(const Args& p, uint8_t byte) {
  if (!p.folds) {
    return 1.0f;
  }
  return p.w.scale_dtype == DType::kE8M0 ? e8m0_to_float(byte)
                                         : quant::device::decode1(Code::kE4M3, byte);
}
__device__ __forceinline__ float zero_point_of(const Args& p, uint8_t byte) {
  return !p.folds && p.w.zero_point != nullptr ? static_cast<float>(byte) - p.w.zero_point_offset
                                               : p.w.default_zero_point;
}

// blockIdx.y counts groups from `first` on.
template <Code kCode>
__global__ void __launch_bounds__(kAcross* kDown) decode_kernel(const __grid_constant__ Args p) {
  const int slot = static_cast<int>(blockIdx.y);
  const int group = p.first + slot;
  const RowSpan span = group_rows(p.rows, group);
  if (span.begin == span.end) {
    return;
  }
  const int step = static_cast<int>(gridDim.x) * kDown;
  const int num_vectors = p.k / kVector;
  const auto* byte_of_block = p.folds ? static_cast<const uint8_t*>(p.w.scale) : p.w.zero_point;
  for (int n = static_cast<int>(blockIdx.x * kDown + threadIdx.y); n < p.n; n += step) {
    const uint8_t* codes = p.w.values + (int64_t{group} * p.n + n) * p.w.row_bytes;
    auto* out = reinterpret_cast<uint4*>(p.out + (int64_t{slot} * p.n + n) * p.k);
    const int64_t first_scale = scale_row(p.w, group, n);
    if (threadIdx.x == 0) {
      p.column_scale[int64_t{slot} * p.n + n] = column_scale(p, group, n);
    }
    for (int block = static_cast<int>(threadIdx.x); block < p.num_blocks; block += kAcross) {
      p.block_scale[(int64_t{slot} * p.num_blocks + block) * p.n + n] =
          weight_scale(p.w, first_scale + block);
    }
    for (int first = static_cast<int>(threadIdx.x); first < num_vectors; first += kHeld * kAcross) {
      uint64_t held[kHeld];
      uint8_t of_block[kHeld] = {};
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        const int vector = min(first + h * kAcross, num_vectors - 1);
        held[h] = quant::device::load_codes(
            kCode, codes + int64_t{vector} * quant::device::vector_bytes(kCode));
        if (byte_of_block != nullptr) {
          of_block[h] =
              byte_of_block[first_scale + __umulhi(static_cast<uint32_t>(vector), p.block_inverse)];
        }
      }
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        if (first + h * kAcross < num_vectors) {
          out[first + h * kAcross] = decode_vector<kCode>(held[h], zero_point_of(p, of_block[h]),
                                                          scale_of(p, of_block[h]));
        }
      }
    }
  }
}

auto kernel_for(Code code) {
  switch (code) {
    case Code::kE4M3:
      return decode_kernel<Code::kE4M3>;
    case Code::kI8:
      return decode_kernel<Code::kI8>;
    case Code::kU4:
      return decode_kernel<Code::kU4>;
    case Code::kE2M1:
      return decode_kernel<Code::kE2M1>;
    case Code::kE3M2:
      return decode_kernel<Code::kE3M2>;
    case Code::kE2M3:
      return decode_kernel<Code::kE2M3>;
  }
  return decode_kernel<Code::kE4M3>;
}

}  // namespace

void decode_weights(const ExpertGemm& gemm,
                    int64_t first,
                    const GroupedGemm& out,
                    const Stream& on) {
  const int index = on.device().index;
  const DeviceGuard guard(index);
  const WeightOperand& w = *gemm.w;
  Args p{};
  p.w = weight_args(w);
  p.a = row_args(gemm.a);
  p.rows = gemm.rows;
  p.folds = quant::scaled_codes_fit_bf16(*w.quant.format);
  p.num_blocks = static_cast<int>(decoded_blocks(facts_of(w)));
  const int64_t of_block = (int64_t{p.w.group_cols} + kVector - 1) / kVector;
  p.block_inverse = static_cast<uint32_t>(((int64_t{1} << 32) + of_block - 1) / of_block);
  p.out = out.b.data<BFloat16>();
  p.column_scale = out.column_scale.data<float>();
  p.block_scale = out.b_scale ? out.b_scale.data<float>() : nullptr;
  p.first = static_cast<int>(first);
  p.n = static_cast<int>(out.b.dim(1));
  p.k = static_cast<int>(out.b.dim(2));
  const int64_t groups = out.b.dim(0);
  const int64_t across = blocks_of(gemm, kBlocksPerSm, index) / groups;
  const int64_t needed = (p.n + kDown - 1) / kDown;
  const dim3 grid(static_cast<unsigned>(std::clamp<int64_t>(across, 1, needed)),
                  static_cast<unsigned>(groups));
  kernel_for(p.w.code)<<<grid, dim3(kAcross, kDown), 0, as_stream(on.native_handle())>>>(p);
  check_launch("decode_kernel");
}

}  // namespace moebius::cuda
