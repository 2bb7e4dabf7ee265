// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernels that quantize rows.  They first find the range of the elements that share a scale,
// then the code of the group by the rules of the quant stage, then the codes of the elements.  A
// scale over many rows is known before.
#pragma once

#include "core/cuda/ptx.cuh"
#include "experts/cuda/rows/given_scales.h"
#include "experts/cuda/rows/row_groups.cuh"
#include "quant/cuda/elements.cuh"
#include "quant/group_rule.h"

namespace moebius::cuda::encode_rows {

inline constexpr int kThreads = 256;
inline constexpr int kWarp = 32;
inline constexpr int kWarps = kThreads / kWarp;

struct Args {
  QuantizeSpec spec;
  quant::Encode how;
  quant::Code code;
  RowGroups rows;
  const void* x;
  int k;
  bool has_vectors;           // rows are whole vectors of eight elements, and aligned
  int group;                  // elements per scale
  int num_groups;             // per row
  int lanes;                  // that share a scale, with eight elements each; up to a warp
  int chunk;                  // elements of a row that a warp quantizes
  const float* tensor_scale;  // [1], [G] or, for each row's global scale, [rows]; nullptr: none
  bool is_per_expert;         // tensor_scale is
  float* scale;               // per group; nullptr: not stored
  void* values;
  bool is_bf16;  // values are code times block scale, if there is one; else 8-bit codes
  GivenScales given;
};

// The block scale that values in bf16 are multiplied by.  A global scale of the row is a power of
// two, so that it goes into the values, too.
__device__ __forceinline__ float block_scale(const QuantizeSpec& spec,
                                             const quant::GroupCode& group,
                                             float tensor_scale) {
  switch (spec.format) {
    case QuantFormat::kFp8:
      return 1.0f;
    case QuantFormat::kNvfp4: {
      const float scale = quant::device::decode1(quant::Code::kE4M3, group.scale_code);
      return spec.global_scale_per_row ? scale / tensor_scale : scale;
    }
    default:
      return e8m0_to_float(group.scale_code);
  }
}

__device__ __forceinline__ float tensor_scale_of(const Args& a, int64_t row) {
  if (a.tensor_scale == nullptr) {
    return 0.0f;
  }
  return a.tensor_scale[a.spec.global_scale_per_row ? row
                        : a.is_per_expert           ? group_of(a.rows, row)
                                                    : 0];
}

__device__ __forceinline__ quant::GroupCode code_of_group(const Args& a,
                                                          int64_t row,
                                                          const quant::Range& range,
                                                          float tensor_scale) {
  return a.given.are_given() ? quant::given_row_code(a.spec.format, a.given.of(row))
                             : quant::group_code(a.spec, range, tensor_scale);
}

// Quantizes and stores eight elements of a row from element i on.
template <typename T>
__device__ __forceinline__ void put_vector(const Args& a,
                                           int64_t i,
                                           const Raw8<T>& raw,
                                           const quant::device::Factor& factor,
                                           float scale) {
  float v[kVector];
  widen(raw, v);
  const uint64_t codes = quant::device::encode8(a.how, v, factor);
  if (!a.is_bf16) {
    quant::device::store_codes(quant::Code::kI8, static_cast<uint8_t*>(a.values) + i, codes);
    return;
  }
  quant::device::decode8(a.code, codes, v);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    v[j] *= scale;
  }
  store8(static_cast<BFloat16*>(a.values) + i, v);
}

// A warp takes a chunk of a row, and a lane has eight neighbours of it at a time; `lanes` lanes
// share a scale.
template <typename T>
__global__ void __launch_bounds__(kThreads) encode_vectors_kernel(const __grid_constant__ Args a) {
  constexpr int kStep = kWarp * kVector;
  ptx::await_and_let_next(a.rows.between_gemms);
  const RowSpan span = span_rows(a.rows, static_cast<int>(blockIdx.y));
  const int offset = static_cast<int>(threadIdx.x) % kWarp * kVector;
  const bool needs_range = !a.spec.group.is_per_tensor();
  // Why 32 bits do: chunks have 256 elements or more, except a row's last.
  const auto chunks = static_cast<uint32_t>((a.k + a.chunk - 1) / a.chunk);
  const auto num_units = static_cast<uint32_t>(span.end - span.begin) * chunks;
  for (uint32_t unit = blockIdx.x * kWarps + threadIdx.x / kWarp; unit < num_units;
       unit += gridDim.x * kWarps) {
    const int64_t row = span.begin + unit / chunks;
    const int begin = static_cast<int>(unit % chunks) * a.chunk;
    const int end = min(begin + a.chunk, a.k);
    const int own = begin + offset;
    const T* x = static_cast<const T*>(a.x) + row * a.k;
    Raw8<T> raw = {};
    if (own < end) {
      raw = load_raw(x + own);
    }
    quant::Range range;
    if (needs_range) {
      range.max = absmax(raw);
      for (int i = own + kStep; i < end; i += kStep) {
        range.max = fmaxf(range.max, absmax(load_raw(x + i)));
      }
      range.max = largest_of_lanes(range.max, a.lanes);
    }
    const float tensor_scale = tensor_scale_of(a, row);
    const quant::GroupCode group = code_of_group(a, row, range, tensor_scale);
    const auto factor = quant::device::make_factor(group.factor, group.zero_point);
    const float scale = a.is_bf16 ? block_scale(a.spec, group, tensor_scale) : 1.0f;
    if (own < end) {
      if (a.scale != nullptr && own % a.group == 0) {
        a.scale[row * a.num_groups + own / a.group] = group.scale;
      }
      put_vector(a, row * a.k + own, raw, factor, scale);
    }
    for (int i = own + kStep; i < end; i += kStep) {
      put_vector(a, row * a.k + i, load_raw(x + i), factor, scale);
    }
  }
}

// A warp takes a group; for groups that are not whole vectors.
template <typename T>
__global__ void __launch_bounds__(kThreads) encode_kernel(const __grid_constant__ Args a) {
  ptx::await_and_let_next(a.rows.between_gemms);
  const RowSpan span = span_rows(a.rows, static_cast<int>(blockIdx.y));
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int64_t num_units = (span.end - span.begin) * a.num_groups;
  for (int64_t unit = first; unit < num_units; unit += int64_t{gridDim.x} * kWarps) {
    const int64_t row = span.begin + unit / a.num_groups;
    const int begin = static_cast<int>(unit % a.num_groups) * a.group;
    const int end = min(a.k, begin + a.group);
    const T* x = static_cast<const T*>(a.x) + row * a.k;

    const float tensor_scale = tensor_scale_of(a, row);
    quant::Range range;
    if (!a.spec.group.is_per_tensor()) {
      for (int i = begin + lane; i < end; i += kWarp) {
        range.max = fmaxf(range.max, fabsf(load1(x + i)));
      }
      range.max = largest_of_lanes(range.max, kWarp);
    }
    const quant::GroupCode group = code_of_group(a, row, range, tensor_scale);
    const quant::device::Factor factor = quant::device::make_factor(group.factor, group.zero_point);
    if (lane == 0 && a.scale != nullptr) {
      a.scale[row * a.num_groups + begin / a.group] = group.scale;
    }
    for (int i = begin + lane; i < end; i += kWarp) {
      const uint32_t bits = quant::device::encode1(a.how, load1(x + i), factor);
      if (a.is_bf16) {
        store1(static_cast<BFloat16*>(a.values) + row * a.k + i,
               quant::device::decode1(a.code, bits) * block_scale(a.spec, group, tensor_scale));
      } else {
        static_cast<uint8_t*>(a.values)[row * a.k + i] = static_cast<uint8_t>(bits);
      }
    }
  }
}

// Eight codes of elements whose row has one scale.
template <quant::Encode kHow, typename T>
__device__ __forceinline__ uint64_t codes_of_row(const Raw8<T>& raw,
                                                 const quant::device::Factor& factor,
                                                 bool is_given) {
  float v[kVector];
  widen(raw, v);
  if constexpr (kHow == quant::Encode::kE4M3Divide && sizeof(T) == 2) {
    if (!is_given) {  // no element is larger than the scale allows
      return quant::device::encode_narrow_e4m3(v, factor);
    }
  }
  return quant::device::encode8_as<kHow>(v, factor);
}

// A block takes a row with one scale, of which a thread holds up to kHeld vectors, and requests the
// next row meanwhile.  So rows are read once, and always on their way.
template <typename T, quant::Encode kHow, int kHeld>
__global__ void __launch_bounds__(kThreads)
    encode_whole_rows_kernel(const __grid_constant__ Args a) {
  __shared__ float of_warp[2][kWarps];  // used in turn, so that a row needs one barrier
  ptx::await_and_let_next(a.rows.between_gemms);
  const RowSpan span = span_rows(a.rows, static_cast<int>(blockIdx.y));
  const int own = static_cast<int>(threadIdx.x) * kVector;
  constexpr int kStep = kThreads * kVector;
  const auto request = [&](int64_t row, Raw8<T>(&to)[kHeld]) {
    const T* x = static_cast<const T*>(a.x) + row * a.k + own;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      if (row < span.end && own + h * kStep < a.k) {
        to[h] = load_raw(x + h * kStep);
      }
    }
  };
  QuantizeSpec spec = a.spec;  // with a constant format, so that the other rules drop out
  spec.format = kHow == quant::Encode::kE4M3Divide ? QuantFormat::kFp8 : QuantFormat::kInt8;
  int turn = 0;
  int64_t row = span.begin + blockIdx.x;
  Raw8<T> next[kHeld] = {};
  request(row, next);
  for (; row < span.end; row += gridDim.x) {
    Raw8<T> held[kHeld];
    float largest = 0.0f;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      held[h] = next[h];
    }
    request(row + gridDim.x, next);
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      largest = fmaxf(largest, absmax(held[h]));
    }
    largest = largest_of_lanes(largest, kWarp);
    if (threadIdx.x % kWarp == 0) {
      of_warp[turn][threadIdx.x / kWarp] = largest;
    }
    __syncthreads();
#pragma unroll
    for (const float of_one : of_warp[turn]) {
      largest = fmaxf(largest, of_one);
    }
    turn ^= 1;
    const bool is_given = a.given.are_given();
    const quant::GroupCode code = is_given ? quant::given_row_code(spec.format, a.given.of(row))
                                           : quant::group_code(spec, {0.0f, largest}, 0.0f);
    const auto factor = quant::device::make_factor(code.factor, 0.0f);
    if (threadIdx.x == 0) {
      a.scale[row] = code.scale;
    }
    auto* to = static_cast<uint8_t*>(a.values) + row * a.k + own;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      if (own + h * kStep < a.k) {
        quant::device::store_codes(quant::code_of(kHow), to + h * kStep,
                                   codes_of_row<kHow>(held[h], factor, is_given));
      }
    }
  }
}

}  // namespace moebius::cuda::encode_rows
