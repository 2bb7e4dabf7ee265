// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A unit is 16 bytes of an operand row as the tensor cores read it.  Plain operands are units as
// they lie in memory; codes are decoded into elements that hold them exactly.  Block scales go into
// the elements where they fit (`folds`), else they are applied to the sums of whole blocks.
#pragma once

#include "experts/cuda/gemm/weight_values.cuh"

namespace moebius::cuda {

// The elements of a unit.  The tensor cores multiply T: BFloat16, Float16 or int8_t.
template <typename T>
inline constexpr int kUnit = 16 / static_cast<int>(sizeof(T));

// How the bytes of a row's step come to shared memory: in chunks of 16 or 8 bytes, or, where rows
// are not aligned, byte by byte.
struct RowBytes {
  int64_t row_bytes;
  int step_bytes;  // 64 where units are plain, less where they are codes
  int chunk;       // bytes; 0: byte by byte
  int shift;       // 2^shift chunks of 16 bytes in a step
};

template <typename T>
__device__ __forceinline__ uint4 pack_unit(const float (&v)[kVector]) {
  return make_uint4(narrow_pair(T{}, v[0], v[1]), narrow_pair(T{}, v[2], v[3]),
                    narrow_pair(T{}, v[4], v[5]), narrow_pair(T{}, v[6], v[7]));
}

// Decodes a unit of A from codes in shared memory.  REQUIRES: a.dtype is f8e4m3 or i8, T has 16
// bits.
template <typename T>
__device__ __forceinline__ uint4 row_unit(const RowArgs& a, const uint8_t* p) {
  float v[kVector];
  const uint64_t codes = quant::device::load_codes(quant::Code::kI8, p);
  if (a.dtype == DType::kI8) {
    quant::device::decode8_as<quant::Code::kI8>(codes, v);
  } else {
    quant::device::decode8_as<quant::Code::kE4M3>(codes, v);
  }
  return pack_unit<T>(v);
}

// The number that is subtracted from a unit's codes, and the scale that they are multiplied by.
struct UnitScale {
  float zero_point = 0.0f;
  float scale = 1.0f;
};

// Loads those of the unit at column k of a row whose scales begin at `first`.
__device__ __forceinline__ UnitScale load_unit_scale(const WeightArgs& w,
                                                     int64_t first,
                                                     int k,
                                                     bool folds) {
  UnitScale unit;
  const int64_t at = first + min(k / w.group_cols, w.scale_cols - 1);
  unit.zero_point = w.zero_point != nullptr ? weight_zero_point(w, at) : w.default_zero_point;
  unit.scale = folds ? weight_scale(w, at) : 1.0f;
  return unit;
}

// Decodes a unit of W from codes in shared memory.
template <typename T>
__device__ __forceinline__ uint4 weight_unit(const WeightArgs& w,
                                             const uint8_t* p,
                                             const UnitScale& unit) {
  float v[kVector];
  uint64_t codes = quant::device::load_codes(w.code, p);
  if (w.is_packed) {
    codes = packed_e2m1::unpacked(static_cast<uint32_t>(codes));
  }
  quant::device::decode8(w.code, codes, v);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    v[i] = (v[i] - unit.zero_point) * unit.scale;
  }
  return pack_unit<T>(v);
}

}  // namespace moebius::cuda
