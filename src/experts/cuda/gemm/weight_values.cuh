// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How kernels read elements and scales of the operands of an expert GEMM.
#pragma once

#include "experts/cuda/gemm/dequant/packed_e2m1.cuh"
#include "experts/cuda/gemm/dequant/packed_e4m3.cuh"
#include "experts/cuda/gemm/weight_values.h"
#include "moebius/float_types.h"
#include "quant/cuda/elements.cuh"

namespace moebius::cuda {

// The codes of this many elements of a row fill whole bytes in every format.
inline constexpr int kPack = 4;

__device__ __forceinline__ float load_float(const void* p, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(p)[i];
    case DType::kBF16:
      return load1(static_cast<const BFloat16*>(p) + i);
    default:
      return load1(static_cast<const Float16*>(p) + i);
  }
}

// The index of the first scale of row n of group g.
__device__ __forceinline__ int64_t scale_row(const WeightArgs& w, int g, int n) {
  int row = 0;
  if (w.group_rows == 1 && w.scale_rows > 1) {
    row = n;  // without divisions, whose instructions count where items are short
  } else if (w.scale_rows > 1) {
    row = n < w.gate_rows
              ? n / w.group_rows
              : (w.gate_rows + w.group_rows - 1) / w.group_rows + (n - w.gate_rows) / w.group_rows;
  }
  return (int64_t{g} * w.scale_rows + row) * w.scale_cols;
}

// The factor of all block scales of a row of nvfp4.
__device__ __forceinline__ float global_factor(const WeightArgs& w, int g, int n) {
  float factor = 1.0f;
  if (w.alpha != nullptr) {
    const bool is_up = w.alphas_per_group == 2 && n >= w.gate_rows;
    factor = w.alpha[g * w.alphas_per_group + (is_up ? 1 : 0)];
  }
  if (w.activation_gscale != nullptr) {
    factor *= w.activation_gscale[w.has_gscale_per_group ? g : 0];
  }
  return factor;
}

// Returns what the codes of a weight in nvfp4 are multiplied by, from the byte that it keeps for
// their scale.
__device__ __forceinline__ float e4m3_scale(const WeightArgs& w, uint8_t byte) {
  return w.is_packed ? packed_e4m3::value(byte) : quant::device::decode1(quant::Code::kE4M3, byte);
}

// A block scale, without nvfp4's factor.
__device__ __forceinline__ float weight_scale(const WeightArgs& w, int64_t i) {
  switch (w.scale_dtype) {
    case DType::kE8M0:
      return e8m0_to_float(static_cast<const uint8_t*>(w.scale)[i]);
    case DType::kF8E4M3:
      return e4m3_scale(w, static_cast<const uint8_t*>(w.scale)[i]);
    default:
      return load_float(w.scale, w.scale_dtype, i);
  }
}

__device__ __forceinline__ float weight_zero_point(const WeightArgs& w, int64_t i) {
  return w.zero_point != nullptr ? static_cast<float>(w.zero_point[i]) - w.zero_point_offset
                                 : w.default_zero_point;
}

// The codes of elements [k, k + kPack) of a row; those behind its end are 0.
__device__ __forceinline__ uint32_t load_pack(const WeightArgs& w, const uint8_t* row, int k) {
  if (w.is_packed) {
    const int64_t at = int64_t{k / kVector} * int64_t{sizeof(uint32_t)};
    const uint32_t packed = at < w.row_bytes ? *reinterpret_cast<const uint32_t*>(row + at) : 0;
    return packed_e2m1::unpacked(packed) >> k % kVector * 4;
  }
  const quant::Code code = w.code;
  const int bytes = quant::code_bits(code) * kPack / 8;
  const int64_t first = int64_t{k} * quant::code_bits(code) / 8;
  uint32_t codes = 0;
  for (int i = 0; i < bytes; ++i) {
    if (first + i < w.row_bytes) {
      codes |= static_cast<uint32_t>(row[first + i]) << (8 * i);
    }
  }
  return codes;
}

// Sets v to elements [k, k + kPack) of row n of group g; those behind the row's end are 0.
// REQUIRES: k is a multiple of kPack.
__device__ __forceinline__ void weight_pack(
    const WeightArgs& w, int g, int n, int num_rows, int k, int cols, float (&v)[kPack]) {
  const uint8_t* row = w.values + (int64_t{g} * num_rows + n) * w.row_bytes;
  if (!w.is_coded) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      v[i] = k + i < cols ? load_float(row, w.dtype, k + i) : 0.0f;
    }
    return;
  }
  const uint32_t codes = load_pack(w, row, k);
  const int width = quant::code_bits(w.code);
  const int64_t first = scale_row(w, g, n);
  const float factor = w.scale_dtype == DType::kF8E4M3 ? global_factor(w, g, n) : 1.0f;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const uint32_t bits = codes >> (width * i) & ((1u << width) - 1);
    v[i] = 0.0f;
    if (k + i < cols) {
      const int64_t at = first + (k + i) / w.group_cols;
      const float scale = weight_scale(w, at) * factor;
      v[i] = (quant::device::decode1(w.code, bits) - weight_zero_point(w, at)) * scale;
    }
  }
}

// The scale of element k of a row.
__device__ __forceinline__ float row_scale(const RowArgs& a, int64_t row, int g, int k) {
  switch (a.scales) {
    case RowScales::kNone:
      return 1.0f;
    case RowScales::kAll:
      return a.scale[0];
    case RowScales::kPerGroup:
      return a.scale[g];
    case RowScales::kPerRow:
      return a.scale[row * a.num_blocks + k / a.block];
  }
  return 1.0f;
}

// One element of a row, without its scale.
__device__ __forceinline__ float row_element(const RowArgs& a, int64_t i) {
  switch (a.dtype) {
    case DType::kF8E4M3:
      return quant::device::decode1(quant::Code::kE4M3, a.values[i]);
    case DType::kI8:
      return quant::device::decode1(quant::Code::kI8, a.values[i]);
    default:
      return load_float(a.values, a.dtype, i);
  }
}

__device__ __forceinline__ float row_value(const RowArgs& a, int64_t row, int g, int k, int cols) {
  const float element = row_element(a, row * cols + k);
  if (a.scales == RowScales::kNone) {
    return element;
  }
  const float scale = row_scale(a, row, g, k);
  return a.divides ? element * (1.0f / scale) : element * scale;
}

// Stores two neighbouring elements.  REQUIRES: at is even.
__device__ __forceinline__ void store_pair(void* out, DType dtype, int64_t at, float2 v) {
  switch (dtype) {
    case DType::kF32:
      *reinterpret_cast<float2*>(static_cast<float*>(out) + at) = v;
      break;
    case DType::kBF16:
      *reinterpret_cast<uint32_t*>(static_cast<BFloat16*>(out) + at) =
          narrow_pair(BFloat16{}, v.x, v.y);
      break;
    default:
      *reinterpret_cast<uint32_t*>(static_cast<Float16*>(out) + at) =
          narrow_pair(Float16{}, v.x, v.y);
  }
}

}  // namespace moebius::cuda
