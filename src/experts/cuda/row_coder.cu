// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A warp per group of elements that share a scale: their range, the group's code by the rules of
// the quant stage, then the elements.  Scales over many rows take a pass over them first.
#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "experts/cuda/row_coder.h"
#include "experts/cuda/row_groups.cuh"
#include "quant/cuda/elements.cuh"
#include "quant/group_rule.h"
#include "quant/groups.h"

namespace moebius::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kAll = 0xffffffffu;

struct Args {
  QuantizeSpec spec;
  quant::Encode how;
  RowGroups rows;
  const void* x;
  int k;
  int group;                  // elements per scale
  int num_groups;             // per row
  const float* tensor_scale;  // [1] or [G]; nullptr: a scale per group
  bool is_per_expert;         // tensor_scale
  float* scale;               // per group; nullptr: not stored
  void* values;
  bool is_value;  // bf16 code times block scale, else 8-bit codes
};

__device__ __forceinline__ float largest_of_warp(float v) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    v = fmaxf(v, __shfl_xor_sync(kAll, v, step));
  }
  return v;
}

// The block scale that is multiplied into values.
__device__ __forceinline__ float block_scale(QuantFormat format, const quant::GroupCode& group) {
  return format == QuantFormat::kNvfp4
             ? quant::device::decode1(quant::Code::kE4M3, group.scale_code)
             : e8m0_to_float(group.scale_code);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) encode_kernel(const __grid_constant__ Args a) {
  const RowSpan span = span_rows(a.rows, static_cast<int>(blockIdx.y));
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int64_t num_units = (span.end - span.begin) * a.num_groups;
  for (int64_t unit = first; unit < num_units; unit += int64_t{gridDim.x} * kWarps) {
    const int64_t row = span.begin + unit / a.num_groups;
    const int begin = static_cast<int>(unit % a.num_groups) * a.group;
    const int end = min(a.k, begin + a.group);
    const T* x = static_cast<const T*>(a.x) + row * a.k;

    float tensor_scale = 0.0f;
    if (a.tensor_scale != nullptr) {
      tensor_scale = a.tensor_scale[a.is_per_expert ? group_of(a.rows, row) : 0];
    }
    quant::Range range;
    if (!a.spec.group.is_per_tensor()) {
      for (int i = begin + lane; i < end; i += kWarp) {
        range.max = fmaxf(range.max, fabsf(load1(x + i)));
      }
      range.max = largest_of_warp(range.max);
    }
    const quant::GroupCode group = quant::group_code(a.spec, range, tensor_scale);
    const quant::device::Factor factor = quant::device::make_factor(group.factor, group.zero_point);
    if (lane == 0 && a.scale != nullptr) {
      a.scale[row * a.num_groups + begin / a.group] = group.scale;
    }
    const quant::Code code = quant::code_of(a.how);
    for (int i = begin + lane; i < end; i += kWarp) {
      const uint32_t bits = quant::device::encode1(a.how, load1(x + i), factor);
      if (a.is_value) {
        store1(static_cast<BFloat16*>(a.values) + row * a.k + i,
               quant::device::decode1(code, bits) * block_scale(a.spec.format, group));
      } else {
        static_cast<uint8_t*>(a.values)[row * a.k + i] = static_cast<uint8_t>(bits);
      }
    }
  }
}

// largest[expert or 0] = max(itself, |x|) over the rows in use, NaN passed over.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    largest_kernel(const __grid_constant__ Args a, float* largest) {
  const RowSpan span = span_rows(a.rows, static_cast<int>(blockIdx.y));
  float max = 0.0f;
  for (int64_t row = span.begin + blockIdx.x; row < span.end; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.k;
    for (int i = static_cast<int>(threadIdx.x); i < a.k; i += kThreads) {
      max = fmaxf(max, fabsf(load1(x + i)));
    }
  }
  max = largest_of_warp(max);
  if (threadIdx.x % kWarp == 0) {
    // Floats that are not negative are ordered as their bits are.
    atomicMax(reinterpret_cast<int*>(largest + (a.is_per_expert ? blockIdx.y : 0)),
              __float_as_int(max));
  }
}

__global__ void scales_kernel(QuantFormat format, float* largest_to_scale, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    largest_to_scale[i] = quant::tensor_scale(format, largest_to_scale[i]);
  }
}

}  // namespace

RowCoder::RowCoder(const QuantDesc& desc, const ExpertsDesc& experts)
    : spec_(activation_spec(desc)), num_experts_(experts.num_local_experts) {
  if (!spec_) {
    return;
  }
  const bool is_nvfp4 = spec_->format == QuantFormat::kNvfp4;
  if (is_nvfp4 || spec_->group.is_per_tensor()) {
    constant_ = is_nvfp4 ? desc.alpha_or_gscale : desc.scale;
    const bool is_per_expert =
        constant_ ? constant_.numel() > 1 : experts.format == ActivationFormat::kBatched;
    scales_ = is_per_expert ? RowScales::kPerGroup : RowScales::kAll;
  } else if (!is_ocp_mx(spec_->format)) {
    scales_ = RowScales::kPerRow;
  }
}

DType RowCoder::dtype() const {
  return quant::scaled_codes_fit_bf16(spec_->format) ? DType::kBF16 : storage_dtype(spec_->format);
}

RowOperand RowCoder::take(Scratch& scratch, int64_t rows, int64_t k) const {
  RowOperand out;
  out.scales = scales_;
  out.divides = spec_->format == QuantFormat::kNvfp4;
  out.values = scratch.take({rows, k}, dtype());
  if (scales_ == RowScales::kPerRow) {
    out.block = spec_->group.col > 0 ? spec_->group.col : k;
    out.scale = scratch.take({rows, quant::ceil_div(k, out.block)}, DType::kF32);
  } else if (scales_ != RowScales::kNone) {
    out.scale = is_dynamic()
                    ? scratch.take({scales_ == RowScales::kAll ? 1 : num_experts_}, DType::kF32)
                    : constant_;
  }
  return out;
}

RowOperand RowCoder::given(const Tensor& codes, const Tensor& x_scale) const {
  RowOperand out;
  out.values = codes;
  const int64_t k = codes.dim(1);
  if (spec_->group.is_per_tensor()) {
    out.scales = x_scale.numel() > 1 ? RowScales::kPerGroup : RowScales::kAll;
    out.scale = x_scale.view({x_scale.numel()});
  } else {
    out.scales = RowScales::kPerRow;
    out.block = spec_->group.col > 0 ? spec_->group.col : k;
    out.scale = x_scale.view({codes.dim(0), quant::ceil_div(k, out.block)});
  }
  return out;
}

void RowCoder::encode(const Tensor& x,
                      const RowGroups& rows,
                      const RowOperand& out,
                      const Stream& on) const {
  if (x.numel() == 0) {
    return;
  }
  const int index = on.device().index;
  const DeviceGuard guard(index);
  const cudaStream_t stream = as_stream(on.native_handle());
  const int64_t k = x.dim(1);
  Args a{};
  a.spec = *spec_;
  a.how = quant::encode_of(*spec_);
  a.rows = rows;
  a.x = x.raw();
  a.k = static_cast<int>(k);
  a.group = static_cast<int>(spec_->group.col > 0 ? std::min(spec_->group.col, k) : k);
  a.num_groups = static_cast<int>(quant::ceil_div(k, a.group));
  a.is_per_expert = scales_ == RowScales::kPerGroup;
  a.scale = scales_ == RowScales::kPerRow ? out.scale.data<float>() : nullptr;
  a.values = out.values.raw();
  a.is_value = quant::scaled_codes_fit_bf16(spec_->format);
  const bool is_over_rows = scales_ == RowScales::kAll || scales_ == RowScales::kPerGroup;
  float* largest = nullptr;
  if (is_over_rows) {
    a.tensor_scale = out.scale.data<float>();
    largest = is_dynamic() ? out.scale.data<float>() : nullptr;
  }
  const int sms = num_sms(index);
  visit_float(x.dtype(), [&](auto type) {
    using T = decltype(type);
    if (largest != nullptr) {
      const int64_t n = out.scale.numel();
      check_cuda(cudaMemsetAsync(largest, 0, static_cast<size_t>(n) * sizeof(float), stream),
                 "cudaMemsetAsync of scales");
      largest_kernel<T><<<span_grid(rows, x.dim(0), 4, sms), kThreads, 0, stream>>>(a, largest);
      check_launch("largest_kernel");
      scales_kernel<<<1, kThreads, 0, stream>>>(spec_->format, largest, static_cast<int>(n));
      check_launch("scales_kernel");
    }
    const int64_t rows_per_block = std::max(1, kWarps / a.num_groups);
    encode_kernel<T><<<span_grid(rows, x.dim(0), rows_per_block, sms), kThreads, 0, stream>>>(a);
    check_launch("encode_kernel");
  });
}

}  // namespace moebius::cuda
