// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows are quantized by the kernels of encode_rows.cuh, and those in nvfp4 and mx formats by that
// of scaled_codes.cu if they are not too wide.  A scale over many rows takes a pass over them
// first.
#include <algorithm>
#include <type_traits>

#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/launch.cuh"
#include "experts/cuda/activation/activation_codes.h"
#include "experts/cuda/rows/encode_rows.cuh"
#include "experts/cuda/rows/row_coder.h"
#include "experts/cuda/rows/row_groups.cuh"
#include "experts/cuda/rows/scaled_codes.h"
#include "quant/cuda/elements.cuh"
#include "quant/group_rule.h"
#include "quant/groups.h"

namespace moebius::cuda {

namespace {

using namespace encode_rows;

using quant::Encode;
template <Encode kHow>
using Constant = std::integral_constant<Encode, kHow>;

// A thread widens eight codes of f8e4m3, whatever the alignment of the caller's tensor.
__global__ void __launch_bounds__(kThreads)
    widen_kernel(const uint8_t* codes, bool are_aligned, BFloat16* out, int64_t num_vectors) {
  constexpr quant::Code kCode = quant::Code::kE4M3;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < num_vectors; i += step) {
    float v[kVector];
    if (are_aligned) {
      quant::device::decode8_as<kCode>(quant::device::load_codes(kCode, codes + i * kVector), v);
    } else {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        v[j] = quant::device::decode1(kCode, codes[i * kVector + j]);
      }
    }
    store8(out + i * kVector, v);
  }
}

struct DecodeArgs {
  quant::Code code;
  RowGroups rows;
  const uint8_t* codes;
  bool are_aligned;
  // A row has one for each `group` elements, e8m0 or e4m3, and may end in a global scale (f32).
  const uint8_t* scale;
  int scale_step;  // bytes of a row's scales
  bool is_e8m0;
  bool has_global_scale;
  int group;
  int k;  // a multiple of group
  BFloat16* values;
};

__device__ __forceinline__ float decoded_scale(const DecodeArgs& a, int64_t row, int col) {
  const uint8_t* scales = a.scale + row * a.scale_step;
  const uint8_t code = scales[col / a.group];
  if (a.is_e8m0) {
    return e8m0_to_float(code);
  }
  const float scale = quant::device::decode1(quant::Code::kE4M3, code);
  if (!a.has_global_scale) {
    return scale;
  }
  const uint8_t* global = scales + a.scale_step - quant::kRowGlobalScaleBytes;
  const uint32_t bits = global[0] | global[1] << 8 | global[2] << 16 | uint32_t{global[3]} << 24;
  return scale / __uint_as_float(bits);
}

// Sets the rows in use to code times block scale, as the encode kernels do.  A thread takes eight
// elements.
__global__ void __launch_bounds__(kThreads) decode_kernel(const __grid_constant__ DecodeArgs a) {
  const RowSpan span = span_rows(a.rows, static_cast<int>(blockIdx.y));
  const int64_t vectors = a.k / kVector;
  const int bytes = quant::device::vector_bytes(a.code);
  const int64_t end = span.end * vectors;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = span.begin * vectors + int64_t{blockIdx.x} * kThreads + threadIdx.x; i < end;
       i += step) {
    const uint8_t* from = a.codes + i * bytes;
    uint64_t codes = 0;
    if (a.are_aligned) {
      codes = quant::device::load_codes(a.code, from);
    } else {
      for (int j = 0; j < bytes; ++j) {
        codes |= static_cast<uint64_t>(from[j]) << (8 * j);
      }
    }
    const float scale = decoded_scale(a, i / vectors, static_cast<int>(i % vectors) * kVector);
    float v[kVector];
    quant::device::decode8(a.code, codes, v);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      v[j] *= scale;
    }
    store8(a.values + i * kVector, v);
  }
}

// Raises largest[expert or 0] to the largest |x| over the rows in use; NaN is passed over.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    largest_kernel(const __grid_constant__ Args a, float* largest) {
  const RowSpan span = span_rows(a.rows, static_cast<int>(blockIdx.y));
  float max = 0.0f;
  for (int64_t row = span.begin + blockIdx.x; row < span.end; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.k;
    if (a.has_vectors) {
      for (int i = static_cast<int>(threadIdx.x) * kVector; i < a.k; i += kThreads * kVector) {
        max = fmaxf(max, absmax(load_raw(x + i)));
      }
    } else {
      for (int i = static_cast<int>(threadIdx.x); i < a.k; i += kThreads) {
        max = fmaxf(max, fabsf(load1(x + i)));
      }
    }
  }
  max = largest_of_lanes(max, kWarp);
  if (threadIdx.x % kWarp == 0) {
    // Floats that are not negative have the order of their bits.
    atomicMax(reinterpret_cast<int*>(largest + (a.is_per_expert ? blockIdx.y : 0)),
              __float_as_int(max));
  }
}

// Sets scale[row] to the global scale of each row in use.  A warp takes a row.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    row_scales_kernel(const __grid_constant__ Args a, float* scale) {
  ptx::await_kernel_before();
  ptx::let_next_begin();
  const RowSpan span = span_rows(a.rows, static_cast<int>(blockIdx.y));
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first = span.begin + int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  for (int64_t row = first; row < span.end; row += int64_t{gridDim.x} * kWarps) {
    const T* x = static_cast<const T*>(a.x) + row * a.k;
    float max = 0.0f;
    if (a.has_vectors) {
      constexpr int kAhead = 8;  // loads under way, since a row has but one warp
      constexpr int kStep = kWarp * kVector;
      for (int i = lane * kVector; i < a.k; i += kAhead * kStep) {
        Raw8<T> own[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
          own[j] = load_raw(x + min(i + j * kStep, a.k - kVector));
        }
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
          max = fmaxf(max, absmax(own[j]));
        }
      }
    } else {
      for (int i = lane; i < a.k; i += kWarp) {
        max = fmaxf(max, fabsf(load1(x + i)));
      }
    }
    max = largest_of_lanes(max, kWarp);
    if (lane == 0) {
      scale[row] = quant::row_global_scale(max);
    }
  }
}

__global__ void scales_kernel(QuantFormat format, float* largest_to_scale, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    largest_to_scale[i] = quant::tensor_scale(format, largest_to_scale[i]);
  }
}

// The lanes of encode_vectors_kernel that share the scale of `group` elements; 0: a group is not
// whole lanes, or not within one warp.
int lanes_of(int group) {
  const int lanes = group / kVector;
  const bool divides_warp = lanes > 0 && kWarp % lanes == 0;
  return group % kVector != 0 || (lanes < kWarp && !divides_warp) ? 0 : std::min(lanes, kWarp);
}

constexpr int kMostHeld = 4;  // vectors of a row that a thread of encode_whole_rows_kernel holds

bool takes_whole_rows(const Args& a) {
  const bool has_kernel = a.how == Encode::kE4M3Divide || a.how == Encode::kI8AwayMultiply ||
                          a.how == Encode::kI8TruncateDivide;
  return has_kernel && a.has_vectors && !a.is_bf16 && a.scale != nullptr && a.num_groups == 1 &&
         a.k > kWarp * kVector && a.k <= kMostHeld * kThreads * kVector;
}

template <typename T>
void launch_whole_rows(const Args& a, const dim3& grid, cudaStream_t stream) {
  const auto kernel_for = [&](auto how) {
    constexpr Encode kHow = decltype(how)::value;
    return a.k <= kThreads * kVector ? encode_whole_rows_kernel<T, kHow, 1>
                                     : encode_whole_rows_kernel<T, kHow, kMostHeld>;
  };
  const auto kernel = a.how == Encode::kE4M3Divide ? kernel_for(Constant<Encode::kE4M3Divide>{})
                      : a.how == Encode::kI8AwayMultiply
                          ? kernel_for(Constant<Encode::kI8AwayMultiply>{})
                          : kernel_for(Constant<Encode::kI8TruncateDivide>{});
  launch_early("encode_whole_rows_kernel", kernel, grid, kThreads, 0, stream, a);
}

}  // namespace

RowCoder::RowCoder(const QuantDesc& desc,
                   const ExpertsDesc& experts,
                   const WeightOperand& w,
                   std::optional<Multiplier> forced)
    : spec_(activation_spec(desc)), num_experts_(experts.num_local_experts) {
  if (!spec_) {
    return;
  }
  const bool is_nvfp4 = spec_->format == QuantFormat::kNvfp4;
  if (spec_->global_scale_per_row) {
    scales_ = RowScales::kNone;  // values hold their scales
  } else if (is_nvfp4 || spec_->group.is_per_tensor()) {
    constant_ = is_nvfp4 ? desc.alpha_or_gscale : desc.scale;
    const bool is_per_expert =
        constant_ ? constant_.numel() > 1 : experts.format == ActivationFormat::kBatched;
    scales_ = is_per_expert ? RowScales::kPerGroup : RowScales::kAll;
  } else if (!is_ocp_mx(spec_->format)) {
    scales_ = RowScales::kPerRow;
  }
  widens_codes_ = spec_->format == QuantFormat::kFp8 && spec_->group.col < 0 &&
                  experts.in_dtype == DType::kBF16 &&
                  wants_bf16_codes(facts_of(w), cuda_device_info(w.values.device().index), forced);
}

DType RowCoder::dtype() const {
  return widens_codes_ || quant::scaled_codes_fit(spec_->format, DType::kBF16)
             ? DType::kBF16
             : storage_dtype(spec_->format);
}

RowFacts RowCoder::facts(int64_t k) const {
  const int64_t block = spec_->group.col > 0 ? spec_->group.col : k;
  return {dtype(), scales_, scales_ == RowScales::kPerRow ? block : 0, divides()};
}

RowOperand RowCoder::take(Scratch& scratch, int64_t rows, int64_t k) const {
  RowOperand out;
  out.scales = scales_;
  out.divides = divides();
  out.values = scratch.take({rows, k}, dtype());
  if (scales_ == RowScales::kPerRow) {
    out.block = spec_->group.col > 0 ? spec_->group.col : k;
    out.scale = scratch.take({rows, ceil_div(k, out.block)}, DType::kF32);
  } else if (spec_->global_scale_per_row) {
    out.scale = scratch.take({rows}, DType::kF32);  // of rows that are too wide for scaled_codes.cu
  } else if (scales_ != RowScales::kNone) {
    out.scale = is_dynamic()
                    ? scratch.take({scales_ == RowScales::kAll ? 1 : num_experts_}, DType::kF32)
                    : constant_;
  }
  return out;
}

RowOperand RowCoder::given(const Tensor& codes,
                           const Tensor& x_scale,
                           const RowGroups& rows,
                           const RowOperand& room,
                           const Stream& on) const {
  if (decodes()) {
    decode(codes, x_scale, rows, room.values, on);
    return room;
  }
  RowOperand out;
  out.values = codes;
  if (widens_codes_) {
    out.values = room.values.slice(0, codes.dim(0));
    const int index = on.device().index;
    const DeviceGuard guard(index);
    const int64_t num_vectors = codes.numel() / kVector;
    const int64_t blocks = std::clamp<int64_t>(num_vectors / kThreads, 1, 16 * num_sms(index));
    widen_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, as_stream(on)>>>(
        static_cast<const uint8_t*>(codes.raw()), is_aligned(codes.raw(), kVector),
        out.values.data<BFloat16>(), num_vectors);
    check_launch("widen_kernel");
  }
  const int64_t k = codes.dim(1);
  if (spec_->group.is_per_tensor()) {
    out.scales = x_scale.numel() > 1 ? RowScales::kPerGroup : RowScales::kAll;
    out.scale = x_scale.view({x_scale.numel()});
  } else {
    out.scales = RowScales::kPerRow;
    out.block = spec_->group.col > 0 ? spec_->group.col : k;
    out.scale = x_scale.view({codes.dim(0), ceil_div(k, out.block)});
  }
  return out;
}

void RowCoder::decode(const Tensor& codes,
                      const Tensor& x_scale,
                      const RowGroups& rows,
                      const Tensor& values,
                      const Stream& on) const {
  const int64_t k = codes.dim(1);
  if (codes.numel() == 0) {
    return;
  }
  const int index = on.device().index;
  const DeviceGuard guard(index);
  DecodeArgs a{};
  a.code = quant::code_of(spec_->format);
  a.rows = rows;
  a.codes = static_cast<const uint8_t*>(codes.raw());
  a.are_aligned = is_aligned(codes.raw(), kVector);
  a.scale = static_cast<const uint8_t*>(x_scale.raw());
  a.scale_step = static_cast<int>(quant::num_row_scales(*spec_, k));
  a.has_global_scale = spec_->global_scale_per_row;
  a.is_e8m0 = x_scale.dtype() == DType::kE8M0;
  a.group = static_cast<int>(quant::fixed_group_cols(spec_->format));
  a.k = static_cast<int>(k);
  a.values = values.data<BFloat16>();
  const int64_t rows_per_block = std::max<int64_t>(1, int64_t{kThreads} * kVector / k);
  decode_kernel<<<span_grid(rows, codes.dim(0), rows_per_block, num_sms(index)), kThreads, 0,
                  as_stream(on)>>>(a);
  check_launch("decode_kernel");
}

void RowCoder::encode(const Tensor& x,
                      const RowGroups& rows,
                      const RowOperand& out,
                      const Stream& on,
                      const GivenScales& given) const {
  if (x.numel() == 0) {
    return;
  }
  const int index = on.device().index;
  const DeviceGuard guard(index);
  const cudaStream_t stream = as_stream(on);
  const int64_t k = x.dim(1);
  Args a{};
  a.spec = *spec_;
  a.how = quant::encode_of(*spec_);
  a.code = quant::code_of(a.how);
  a.rows = rows;
  a.x = x.raw();
  a.k = static_cast<int>(k);
  a.has_vectors = k % kVector == 0 && is_aligned(x.raw(), 2 * sizeof(uint4));
  a.group = static_cast<int>(spec_->group.col > 0 ? std::min(spec_->group.col, k) : k);
  a.num_groups = static_cast<int>(ceil_div(k, a.group));
  a.lanes = lanes_of(a.group);
  a.chunk = std::max(spec_->group.is_per_tensor() ? 0 : a.group, kWarp * kVector);
  a.is_per_expert = scales_ == RowScales::kPerGroup;
  a.scale = scales_ == RowScales::kPerRow ? out.scale.data<float>() : nullptr;
  a.values = out.values.raw();
  a.is_bf16 = dtype() == DType::kBF16;
  a.given = given;
  float* largest = nullptr;
  if (is_over_rows() || spec_->global_scale_per_row) {
    a.tensor_scale = out.scale.data<float>();
    largest = is_over_rows() && is_dynamic() ? out.scale.data<float>() : nullptr;
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
    if (a.has_vectors && takes_scaled_codes(*spec_, k)) {
      put_scaled_codes(*spec_, std::nullopt, rows, x, out, on);
      return;
    }
    if (spec_->global_scale_per_row) {
      launch_early("row_scales_kernel", row_scales_kernel<T>,
                   span_grid(rows, x.dim(0), kWarps, sms), kThreads, 0, stream, a,
                   out.scale.data<float>());
    }
    if (takes_whole_rows(a)) {
      launch_whole_rows<T>(a, span_grid(rows, x.dim(0), 1, sms), stream);
      return;
    }
    const bool takes_vectors = a.has_vectors && a.lanes > 0;
    const int units = takes_vectors ? (a.k + a.chunk - 1) / a.chunk : a.num_groups;  // of a row
    const int64_t all_units = x.dim(0) * units;
    const auto kernel = takes_vectors ? encode_vectors_kernel<T> : encode_kernel<T>;
    launch_early("encode_kernel", kernel, span_grid(rows, all_units, kWarps, sms), kThreads, 0,
                 stream, a);
  });
}

bool RowCoder::activates(int64_t k) const {
  return active() && knows_scales() && activates_to_codes(*spec_, k);
}

RowOperand RowCoder::deferred(const Tensor& x, const RowOperand& room) const {
  RowOperand out = room;
  out.values = x;
  out.codes = spec_;
  if (scales_ == RowScales::kNone) {
    out.scale = {};
  }
  return out;
}

void RowCoder::activate(const ActivationSpec& activation,
                        const Tensor& x,
                        const RowGroups& rows,
                        const RowOperand& out,
                        const Stream& on,
                        const GivenScales& given) const {
  if (takes_scaled_codes(*spec_, out.values.dim(1))) {
    put_scaled_codes(*spec_, activation, rows, x, out, on);
  } else {
    activate_to_codes({activation, *spec_, given}, rows, x, out, on);
  }
}

}  // namespace moebius::cuda
