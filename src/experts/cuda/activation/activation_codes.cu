// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// These kernels are bound by memory: activating 32768 x 4096 bf16 to 2048 fp8 with scales by 128
// moves 338 MB, which takes 80 us at 4.2 TB/s.
#include <algorithm>

#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "experts/cuda/activation/activation.cuh"
#include "experts/cuda/activation/activation_codes.h"
#include "experts/cuda/rows/row_groups.cuh"
#include "quant/cuda/elements.cuh"
#include "quant/group_rule.h"

namespace moebius::cuda {

namespace {

using quant::Encode;

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kMaxHeld = 4;  // vectors that a thread keeps of a row with a single scale
static_assert(kCodedVector == kVector && kMostCodedWidth == int64_t{kThreads} * kVector * kMaxHeld);

struct Args {
  ActivationArgs activation;  // out: codes
  bool is_bf16;               // fp8 codes are stored as bf16
  QuantizeSpec spec;
  float* scale;     // [M, num_groups]
  int group_lanes;  // threads whose vectors share a scale, a power of two up to a warp
  int num_groups;   // per row
  GivenScales given;
};

template <Encode kHow>
__device__ __forceinline__ quant::GroupCode code_of_group(const Args& p, float largest) {
  QuantizeSpec spec = p.spec;  // with a constant format, so that the other rules drop out
  spec.format = kHow == Encode::kE4M3Divide ? QuantFormat::kFp8 : QuantFormat::kInt8;
  return quant::group_code(spec, {0.0f, largest}, 0.0f);
}

template <Encode kHow>
__device__ __forceinline__ quant::GroupCode code_of_given(float scale) {
  return quant::given_row_code(kHow == Encode::kE4M3Divide ? QuantFormat::kFp8 : QuantFormat::kInt8,
                               scale);
}

template <Encode kHow, typename T>
__device__ __forceinline__ void put_codes(const Args& p,
                                          int64_t at,
                                          const Raw8<T>& raw,
                                          const quant::GroupCode& group) {
  float values[kVector];
  widen(raw, values);
  const auto factor = quant::device::make_factor(group.factor, 0.0f);
  uint64_t codes = 0;
  if constexpr (kHow == Encode::kE4M3Divide && sizeof(T) == 2) {
    codes = quant::device::encode_narrow_e4m3(values, factor);
  } else {
    codes = quant::device::encode8_as<kHow>(values, factor);
  }
  if (kHow == Encode::kE4M3Divide && p.is_bf16) {
    quant::device::decode8_as<quant::Code::kE4M3>(codes, values);
    store8(static_cast<BFloat16*>(p.activation.out) + at, values);
    return;
  }
  quant::device::store_codes(quant::code_of(kHow), static_cast<uint8_t*>(p.activation.out) + at,
                             codes);
}

// A row of threads takes a row; neighbouring lanes share a scale.
template <typename T, Encode kHow, bool kIsPlainSilu>
__global__ void __launch_bounds__(kThreads) activate_groups_kernel(const __grid_constant__ Args p) {
  const ActivationArgs& a = p.activation;
  const RowSpan span = span_rows(a.rows, static_cast<int>(blockIdx.y));
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  for (int64_t row = span.begin + int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < span.end;
       row += step) {
    const T* in = static_cast<const T*>(a.in) + row * a.in_width;
    // All lanes of a warp stay in the loop, since they exchange their maxima.
    const int lane_first = static_cast<int>(threadIdx.x) / kWarp * kWarp * kVector;
    const int offset = static_cast<int>(threadIdx.x) % kWarp * kVector;
    for (int first = lane_first; first < a.width; first += static_cast<int>(blockDim.x) * kVector) {
      const int i = first + offset;
      Raw8<T> values = {};
      if (i < a.width) {
        values = activate_vector<kIsPlainSilu>(a, in, i);
      }
      const float largest = largest_of_lanes(absmax(values), p.group_lanes);
      const quant::GroupCode group = code_of_group<kHow>(p, largest);
      if (i < a.width) {
        put_codes<kHow>(p, row * a.width + i, values, group);
        const int vector = i / kVector;
        if (vector % p.group_lanes == 0) {
          p.scale[row * p.num_groups + vector / p.group_lanes] = group.scale;
        }
      }
    }
  }
}

// A block takes a row, which has one scale.
template <typename T, Encode kHow, bool kIsPlainSilu, int kHeld>
__global__ void __launch_bounds__(kThreads) activate_rows_kernel(const __grid_constant__ Args p) {
  __shared__ float of_warp[2][kThreads / kWarp];  // used in turn, so that a row needs one barrier
  const ActivationArgs& a = p.activation;
  const RowSpan span = span_rows(a.rows, static_cast<int>(blockIdx.y));
  const int step = static_cast<int>(blockDim.x) * kVector;
  const int num_warps = static_cast<int>(blockDim.x) / kWarp;
  int turn = 0;
  for (int64_t row = span.begin + blockIdx.x; row < span.end; row += gridDim.x) {
    const T* in = static_cast<const T*>(a.in) + row * a.in_width;
    Raw8<T> values[kHeld] = {};
    float largest = 0.0f;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int i = static_cast<int>(threadIdx.x) * kVector + h * step;
      if (i < a.width) {
        values[h] = activate_vector<kIsPlainSilu>(a, in, i);
        largest = fmaxf(largest, absmax(values[h]));
      }
    }
    largest = largest_of_lanes(largest, kWarp);
    if (threadIdx.x % kWarp == 0) {
      of_warp[turn][threadIdx.x / kWarp] = largest;
    }
    __syncthreads();
    for (int w = 0; w < num_warps; ++w) {
      largest = fmaxf(largest, of_warp[turn][w]);
    }
    turn ^= 1;
    const quant::GroupCode group = p.given.are_given() ? code_of_given<kHow>(p.given.of(row))
                                                       : code_of_group<kHow>(p, largest);
    if (threadIdx.x == 0) {
      p.scale[row] = group.scale;
    }
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int i = static_cast<int>(threadIdx.x) * kVector + h * step;
      if (i < a.width) {
        put_codes<kHow>(p, row * a.width + i, values[h], group);
      }
    }
  }
}

template <typename T, Encode kHow, bool kIsPlainSilu>
auto kernel_for(bool is_per_row, int vectors) {
  if (!is_per_row) {
    return activate_groups_kernel<T, kHow, kIsPlainSilu>;
  }
  return vectors <= kThreads ? activate_rows_kernel<T, kHow, kIsPlainSilu, 1>
                             : activate_rows_kernel<T, kHow, kIsPlainSilu, kMaxHeld>;
}

template <typename T, Encode kHow>
void launch(const Args& p, int64_t room, int num_sms, cudaStream_t stream) {
  const bool is_per_row = p.num_groups == 1;
  const int vectors = p.activation.width / kVector;
  const int across = std::clamp((vectors + kWarp - 1) / kWarp * kWarp, kWarp, kThreads);
  const int rows = is_per_row ? 1 : kThreads / across;
  const dim3 threads(static_cast<unsigned>(across), static_cast<unsigned>(rows));
  const dim3 grid = span_grid(p.activation.rows, room, rows, num_sms);
  const auto kernel = is_plain_silu<T>(p.activation.spec)
                          ? kernel_for<T, kHow, sizeof(T) == 2>(is_per_row, vectors)
                          : kernel_for<T, kHow, false>(is_per_row, vectors);
  kernel<<<grid, threads, 0, stream>>>(p);
  check_launch("activate_to_codes_kernel");
}

}  // namespace

void activate_to_codes(const CodedActivation& coded,
                       const RowGroups& rows,
                       const Tensor& input,
                       const RowOperand& out,
                       const Stream& on) {
  const int64_t room = out.values.dim(0);
  if (room == 0) {
    return;
  }
  const int index = on.device().index;
  const DeviceGuard guard(index);
  Args p{};
  p.activation.spec = coded.activation;
  p.activation.rows = rows;
  p.activation.in = input.raw();
  p.activation.out = out.values.raw();
  p.activation.width = static_cast<int>(out.values.dim(1));
  p.activation.in_width = static_cast<int>(input.dim(1));
  p.is_bf16 = out.values.dtype() == DType::kBF16;
  p.spec = coded.spec;
  p.scale = out.scale.data<float>();
  p.num_groups = static_cast<int>(out.scale.dim(1));
  p.given = coded.given;
  p.group_lanes = p.num_groups > 1 ? static_cast<int>(out.block) / kVector : 0;
  const Encode how = quant::encode_of(coded.spec);
  visit_float(input.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto run = how == Encode::kE4M3Divide       ? launch<T, Encode::kE4M3Divide>
                     : how == Encode::kI8AwayMultiply ? launch<T, Encode::kI8AwayMultiply>
                                                      : launch<T, Encode::kI8TruncateDivide>;
    run(p, room, num_sms(index), as_stream(on));
  });
}

}  // namespace moebius::cuda
