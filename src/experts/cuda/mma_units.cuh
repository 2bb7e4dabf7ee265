// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Units: 16 bytes of an operand row as the tensor cores read it, made of what lies in memory. First
// the bytes are requested (load), and later, when the last tile is consumed, turned into elements.
// Codes become elements that hold them exactly; block scales go into the elements where they fit
// (`folds`), else they are applied to sums of whole blocks.
#pragma once

#include "experts/cuda/weight_values.cuh"

namespace moebius::cuda {

// What the tensor cores multiply: BFloat16, Float16 or int8_t.
template <typename T>
inline constexpr int kUnit = 16 / static_cast<int>(sizeof(T));

// Bytes [first, first + count) of a row of row_bytes, zeros behind its end; 16 at most.
__device__ __forceinline__ uint4 load_bytes(const uint8_t* row,
                                            int64_t first,
                                            int count,
                                            int64_t row_bytes) {
  uint32_t words[4] = {};
  for (int i = 0; i < count; ++i) {
    if (first + i < row_bytes) {
      words[i / 4] |= static_cast<uint32_t>(row[first + i]) << (8 * (i % 4));
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ uint4 as_words(uint64_t codes) {
  return make_uint4(static_cast<uint32_t>(codes), static_cast<uint32_t>(codes >> 32), 0, 0);
}
__device__ __forceinline__ uint64_t as_codes(const uint4& words) {
  return words.x | static_cast<uint64_t>(words.y) << 32;
}

template <typename T>
__device__ __forceinline__ uint4 pack_unit(const float (&v)[kVector]) {
  return make_uint4(narrow_pair(T{}, v[0], v[1]), narrow_pair(T{}, v[2], v[3]),
                    narrow_pair(T{}, v[4], v[5]), narrow_pair(T{}, v[6], v[7]));
}

// A's unit at column k of a row.  is_vector: every unit is whole and aligned.
template <typename T>
__device__ __forceinline__ uint4
load_row_unit(const RowArgs& a, int64_t row, int k, int cols, bool is_vector) {
  const int size = a.dtype == DType::kF8E4M3 || a.dtype == DType::kI8 ? 1 : 2;
  const uint8_t* values = a.values + row * cols * size;
  const int64_t first = int64_t{k} * size;
  const int bytes = kUnit<T> * size;
  if (!is_vector) {
    return load_bytes(values, first, bytes, int64_t{cols} * size);
  }
  if (k >= cols) {
    return make_uint4(0, 0, 0, 0);
  }
  return bytes == 16 ? *reinterpret_cast<const uint4*>(values + first)
                     : as_words(quant::device::load_codes(quant::Code::kI8, values + first));
}

template <typename T>
__device__ __forceinline__ uint4 row_unit(const RowArgs& a, const uint4& raw) {
  if constexpr (sizeof(T) == 2) {
    if (a.dtype == DType::kF8E4M3 || a.dtype == DType::kI8) {
      float v[kVector];
      quant::device::decode8(a.dtype == DType::kI8 ? quant::Code::kI8 : quant::Code::kE4M3,
                             as_codes(raw), v);
      return pack_unit<T>(v);
    }
  }
  return raw;
}

template <typename T>
__device__ __forceinline__ uint4
load_weight_unit(const WeightArgs& w, const uint8_t* row, int k, int cols, bool is_vector) {
  const int width = !w.is_coded ? 8 * static_cast<int>(sizeof(T)) : quant::code_bits(w.code);
  const int bytes = kUnit<T> * width / 8;
  const int64_t first = int64_t{k} * width / 8;
  if (!is_vector) {
    return load_bytes(row, first, bytes, w.row_bytes);
  }
  if (k >= cols) {
    return make_uint4(0, 0, 0, 0);
  }
  return bytes == 16 ? *reinterpret_cast<const uint4*>(row + first)
                     : as_words(quant::device::load_codes(w.code, row + first));
}

// The unit at column k of row n; `folds`: with its block scale.
template <typename T>
__device__ __forceinline__ uint4
weight_unit(const WeightArgs& w, const uint4& raw, int64_t scale_row, int k, bool folds) {
  if constexpr (sizeof(T) == 2) {
    if (w.is_coded) {
      float v[kVector];
      quant::device::decode8(w.code, as_codes(raw), v);
      const int64_t at = scale_row + min(k / w.group_cols, w.scale_cols - 1);
      const bool has_zero_point = w.zero_point != nullptr || w.default_zero_point != 0.0f;
      const float zero_point = has_zero_point ? weight_zero_point(w, at) : 0.0f;
      const float scale = folds ? weight_scale(w, at) : 1.0f;
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        v[i] = (v[i] - zero_point) * scale;
      }
      return pack_unit<T>(v);
    }
  }
  return raw;
}

}  // namespace moebius::cuda
