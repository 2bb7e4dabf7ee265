// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Dequantizes on the GPU.  Memory is the limit, so a thread takes eight codes and shares nothing.
#include <cassert>

#include "core/cuda/check.h"
#include "quant/cuda/elements.cuh"
#include "quant/cuda/kernels.h"
#include "quant/group_rule.h"
#include "quant/groups.h"

namespace moebius::quant::device {

namespace {

constexpr int kThreads = 256;

unsigned grid_of(int64_t threads) {
  const int64_t blocks = ceil_div(threads, kThreads);
  assert(blocks <= 0x7fffffff);
  return static_cast<unsigned>(blocks);
}

struct DequantizeArgs {
  Code code;
  int64_t rows;
  int64_t cols;
  Groups groups;
  bool is_per_tensor;
  const uint8_t* codes;
  const void* scale;
  DType scale_dtype;
  const float* global_scale;
  bool has_global_scale_per_row;
  const uint8_t* zero_point;  // nullptr: default_zero_point everywhere
  float default_zero_point;
  void* out;
  DType out_dtype;
};

struct GroupValue {
  float scale;
  float zero_point;
};

__device__ __forceinline__ GroupValue group_value(const DequantizeArgs& a,
                                                  int64_t row,
                                                  int64_t col) {
  const Groups& g = a.groups;
  const int64_t i =
      a.is_per_tensor ? 0 : row / g.group_rows * g.num_col_groups + col / g.group_cols;
  GroupValue value;
  value.zero_point =
      a.zero_point != nullptr ? static_cast<float>(a.zero_point[i]) : a.default_zero_point;
  switch (a.scale_dtype) {
    case DType::kE8M0:
      value.scale = e8m0_to_float(static_cast<const uint8_t*>(a.scale)[i]);
      break;
    case DType::kF8E4M3:
      value.scale = decode1(Code::kE4M3, static_cast<const uint8_t*>(a.scale)[i]) /
                    a.global_scale[a.has_global_scale_per_row ? row : 0];
      break;
    default:
      value.scale = static_cast<const float*>(a.scale)[i];
  }
  return value;
}

// A thread takes a vector of eight elements of one group.
__global__ void __launch_bounds__(kThreads)
    dequantize_vectors_kernel(const __grid_constant__ DequantizeArgs a) {
  const int64_t unit = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (unit >= a.rows * a.cols / kVector) {
    return;
  }
  const uint64_t codes = load_codes(a.code, a.codes + unit * vector_bytes(a.code));
  const GroupValue group = group_value(a, unit * kVector / a.cols, unit * kVector % a.cols);
  float v[kVector];
  decode8(a.code, codes, v);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    v[i] = (v[i] - group.zero_point) * group.scale;
  }
  store_vector(a.out, a.out_dtype, unit, v);
}

// A thread takes a pack of elements that share bytes.
__global__ void __launch_bounds__(kThreads)
    dequantize_packs_kernel(const __grid_constant__ DequantizeArgs a) {
  const int pack = pack_elements(a.code);
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * pack;
  if (first >= a.rows * a.cols) {
    return;
  }
  uint32_t codes = 0;
  for (int j = 0; j < pack_bytes(a.code); ++j) {
    codes |= static_cast<uint32_t>(a.codes[first / pack * pack_bytes(a.code) + j]) << (8 * j);
  }
  for (int j = 0; j < pack; ++j) {
    const GroupValue group = group_value(a, (first + j) / a.cols, (first + j) % a.cols);
    const int width = code_bits(a.code);
    const float value = decode1(a.code, codes >> (j * width) & ((1u << width) - 1));
    store_element(a.out, a.out_dtype, first + j, (value - group.zero_point) * group.scale);
  }
}

}  // namespace

void dequantize(const Quantized& q, const QuantizeSpec& spec, const Tensor& out, const Stream& on) {
  const cuda::DeviceGuard guard(on);
  const cudaStream_t stream = cuda::as_stream(on);
  DequantizeArgs a{};
  a.code = code_of(spec.format);
  a.rows = out.dim(0);
  a.cols = out.dim(1);
  a.is_per_tensor = spec.group.is_per_tensor();
  a.groups = groups_of(spec.group, a.rows, a.cols);
  a.codes = static_cast<const uint8_t*>(q.values.raw());
  a.scale = q.scale.raw();
  a.scale_dtype = q.scale.dtype();
  a.global_scale = q.global_scale ? q.global_scale.data<float>() : nullptr;
  a.has_global_scale_per_row = spec.global_scale_per_row;
  a.zero_point = spec.asymmetric ? q.zero_point.data<uint8_t>() : nullptr;
  a.default_zero_point = spec.format == QuantFormat::kInt4 ? 8.0f : 0.0f;
  a.out = out.raw();
  a.out_dtype = out.dtype();
  const int64_t n = a.rows * a.cols;
  if (n == 0) {
    return;
  }
  const bool is_one_group =
      a.is_per_tensor || a.groups.num_col_groups == 1 || a.groups.group_cols % kVector == 0;
  if (is_one_group && a.cols % kVector == 0 && cuda::is_aligned(a.out, 16) &&
      cuda::is_aligned(a.codes, vector_alignment(a.code))) {
    dequantize_vectors_kernel<<<grid_of(n / kVector), kThreads, 0, stream>>>(a);
  } else {
    const int64_t packs = n / pack_elements(a.code);
    dequantize_packs_kernel<<<grid_of(packs), kThreads, 0, stream>>>(a);
  }
  cuda::check_launch("dequantize_kernel");
}

}  // namespace moebius::quant::device
