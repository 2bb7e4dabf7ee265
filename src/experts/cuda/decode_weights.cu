// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Bound by memory: 2.5 bytes an element of 4-bit codes.
#include <algorithm>

#include "core/cuda/check.h"
#include "experts/cuda/decode_weights.h"
#include "experts/cuda/row_groups.cuh"
#include "experts/cuda/weight_values.cuh"
#include "quant/group_rule.h"

namespace moebius::cuda {

namespace {

using quant::Code;

// Of a block: threads over vectors of a row, and rows.  As large as may be, since with a limit each
// SM has one.
constexpr int kAcross = 128;
constexpr int kDown = 8;
constexpr int kBlocksPerSm = 2;

struct Args {
  WeightArgs w;
  RowArgs a;
  RowGroups rows;
  bool folds;  // block scales are in the elements, else the column's one scale is in column_scale
  BFloat16* out;
  float* column_scale;
  int first;  // group
  int n;
  int k;
};

__device__ __forceinline__ float column_scale(const Args& p, int group, int n) {
  float factor = 1.0f;
  if (!p.folds) {
    factor = weight_scale(p.w, scale_row(p.w, group, n));
  } else if (p.w.scale_dtype == DType::kF8E4M3) {
    factor = global_factor(p.w, group, n);
  }
  if (p.a.scales != RowScales::kNone) {
    const float scale = p.a.scale[p.a.scales == RowScales::kPerGroup ? group : 0];
    factor *= p.a.divides ? 1.0f / scale : scale;
  }
  return factor;
}

// blockIdx.y: the group, from `first` on.
template <Code kCode>
__global__ void __launch_bounds__(kAcross* kDown) decode_kernel(const __grid_constant__ Args p) {
  const int slot = static_cast<int>(blockIdx.y);
  const int group = p.first + slot;
  const RowSpan span = group_rows(p.rows, group);
  if (span.begin == span.end) {
    return;
  }
  const int step = static_cast<int>(gridDim.x) * kDown;
  for (int n = static_cast<int>(blockIdx.x * kDown + threadIdx.y); n < p.n; n += step) {
    const uint8_t* codes = p.w.values + (int64_t{group} * p.n + n) * p.w.row_bytes;
    BFloat16* out = p.out + (int64_t{slot} * p.n + n) * p.k;
    const int64_t first_scale = scale_row(p.w, group, n);
    if (threadIdx.x == 0) {
      p.column_scale[int64_t{slot} * p.n + n] = column_scale(p, group, n);
    }
    for (int k = static_cast<int>(threadIdx.x) * kVector; k < p.k; k += kAcross * kVector) {
      const int64_t at = first_scale + k / p.w.group_cols;
      const float scale = p.folds ? weight_scale(p.w, at) : 1.0f;
      const float zero_point = weight_zero_point(p.w, at);
      float v[kVector];
      quant::device::decode8_as<kCode>(
          quant::device::load_codes(kCode,
                                    codes + k / kVector * quant::device::vector_bytes(kCode)),
          v);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        v[i] = (v[i] - zero_point) * scale;
      }
      store8(out + k, v);
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

bool can_decode_weights(const WeightOperand& w) {
  if (!w.quant.format) {
    return false;
  }
  const WeightArgs args = weight_args(w);
  return w.values.dim(2) % kVector == 0 &&
         (args.scale_cols == 1 || quant::scaled_codes_fit_bf16(*w.quant.format)) &&
         is_aligned(args.values, quant::device::vector_alignment(args.code));
}

void decode_weights(const ExpertGemm& gemm,
                    int64_t first,
                    const Tensor& out,
                    const Tensor& column_scale,
                    const Stream& on) {
  const int index = on.device().index;
  const DeviceGuard guard(index);
  const WeightOperand& w = *gemm.w;
  Args p{};
  p.w = weight_args(w);
  p.a = row_args(gemm.a);
  p.rows = gemm.rows;
  p.folds = quant::scaled_codes_fit_bf16(*w.quant.format);
  p.out = out.data<BFloat16>();
  p.column_scale = column_scale.data<float>();
  p.first = static_cast<int>(first);
  p.n = static_cast<int>(out.dim(1));
  p.k = static_cast<int>(out.dim(2));
  const int64_t groups = out.dim(0);
  const int64_t across = blocks_of(gemm, kBlocksPerSm, index) / groups;
  const int64_t needed = (p.n + kDown - 1) / kDown;
  const dim3 grid(static_cast<unsigned>(std::clamp<int64_t>(across, 1, needed)),
                  static_cast<unsigned>(groups));
  kernel_for(p.w.code)<<<grid, dim3(kAcross, kDown), 0, as_stream(on.native_handle())>>>(p);
  check_launch("decode_kernel");
}

}  // namespace moebius::cuda
