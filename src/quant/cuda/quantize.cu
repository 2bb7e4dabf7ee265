// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Quantization on the GPU.  Memory is the limit: a matrix is read once (twice when one scale serves
// all of it), and its codes are written once.  4096 x 7168 bf16 to fp8 in groups of 1x128 moves
// 58.7 + 29.4 + 0.9 MB, which takes 21.2 us at 4.2 TB/s; to int8 per token it moves 88.1 MB in 21.0
// us.
//
// At that speed an SM has some 25 instructions per element.  So the way of encoding is a template
// parameter, and a scale is computed once per lane, not once per vector.
//
// There are three kernels, which use vectors of eight elements when alignment allows:
//   flat    for groups of 8, 16, .. 256 elements that tile the rows, or one scale for all: the
//           matrix is one long array, and neighbouring lanes of a warp form a group
//   rows    for one group per row: a CTA keeps the row in registers
//   groups  for all others (blocks of rows, odd lengths): a CTA per group goes element by element
#include <algorithm>
#include <memory>

#include "core/allocate.h"
#include "core/cuda/check.h"
#include "quant/cuda/elements.cuh"
#include "quant/cuda/kernels.h"
#include "quant/cuda/ranges.cuh"
#include "quant/cuda/tensor_scale.h"
#include "quant/group_rule.h"
#include "quant/groups.h"

namespace moebius::quant {

namespace device {

namespace {

using cuda::load1;
using cuda::load_raw;

// CTAs per SM.  They keep 80 KiB of loads in flight, with 48 registers per thread for bf16 and 64
// for f32.
template <typename T>
constexpr int kResident = sizeof(T) == sizeof(float) ? 4 : 5;

struct Args {
  QuantizeSpec spec;
  Encode how;
  int64_t rows;
  int64_t cols;
  Groups groups;
  bool is_per_tensor;
  const void* x;
  const float* tensor_scale;  // [1], or [rows] with spec.global_scale_per_row; nullptr: none
  // The outputs of quantize; all of them are nullptr when `dequantized` is given.
  uint8_t* codes;
  void* scale;  // nullptr per tensor
  uint8_t* zero_point;
  void* dequantized;
  DType dequantized_dtype;
};

// The numbers by which the elements of a group are encoded and decoded.
struct GroupFactors {
  Factor encode;
  float decode_scale;
};

__device__ float stored_scale(const GroupCode& group, DType dtype, float global_scale) {
  switch (dtype) {
    case DType::kE8M0:
      return e8m0_to_float(group.scale_code);
    case DType::kF8E4M3:
      return decode1(Code::kE4M3, group.scale_code) / global_scale;
    default:
      return group.scale;
  }
}

__device__ constexpr DType scale_dtype_of(QuantFormat format) {
  return format == QuantFormat::kNvfp4 ? DType::kF8E4M3
         : format == QuantFormat::kMxfp4 || format == QuantFormat::kMxfp6E3M2 ||
                 format == QuantFormat::kMxfp6E2M3 || format == QuantFormat::kMxfp8
             ? DType::kE8M0
             : DType::kF32;
}

// The only format with this encoding, or `given` when there are several.  With it the compiler
// drops the rules of other formats.
__device__ constexpr QuantFormat format_of(Encode how, QuantFormat given) {
  switch (code_of(how)) {
    case Code::kE4M3:
      return how == Encode::kE4M3Overflow ? QuantFormat::kMxfp8 : QuantFormat::kFp8;
    case Code::kI8:
      return QuantFormat::kInt8;
    case Code::kU4:
      return QuantFormat::kInt4;
    case Code::kE3M2:
      return QuantFormat::kMxfp6E3M2;
    case Code::kE2M3:
      return QuantFormat::kMxfp6E2M3;
    default:
      return given;
  }
}

// The scale of group `index` that other groups share.  Groups past the end take that of the last
// row.
__device__ __forceinline__ float tensor_scale_of(const Args& a, int64_t index) {
  if (a.tensor_scale == nullptr) {
    return 0.0f;
  }
  const int64_t row =
      a.spec.global_scale_per_row ? min(index / a.groups.num_col_groups, a.rows - 1) : 0;
  return a.tensor_scale[row];
}

// Computes the factors of group `index`; the thread with is_writer stores scale and zero point.
__device__ __forceinline__ GroupFactors make_group(
    const Args& a, const QuantizeSpec& spec, const Range& range, int64_t index, bool is_writer) {
  const float tensor_scale = tensor_scale_of(a, index);
  const GroupCode group = group_code(spec, range, tensor_scale);
  const DType dtype = scale_dtype_of(spec.format);
  if (is_writer && a.scale != nullptr) {
    if (dtype == DType::kF32) {
      static_cast<float*>(a.scale)[index] = group.scale;
    } else {
      static_cast<uint8_t*>(a.scale)[index] = group.scale_code;
    }
    if (a.zero_point != nullptr) {
      a.zero_point[index] = static_cast<uint8_t>(group.zero_point);
    }
  }
  return {make_factor(group.factor, group.zero_point), stored_scale(group, dtype, tensor_scale)};
}

template <Encode kHow>
__device__ __forceinline__ GroupFactors
make_group_as(const Args& a, const Range& range, int64_t index, bool is_writer) {
  QuantizeSpec spec = a.spec;
  spec.format = format_of(kHow, a.spec.format);
  return make_group(a, spec, range, index, is_writer);
}

template <Encode kHow>
__device__ __forceinline__ void put_vector(const Args& a,
                                           int64_t unit,
                                           const float (&v)[kVector],
                                           const GroupFactors& group) {
  constexpr Code kCode = code_of(kHow);
  const uint64_t codes = encode8_as<kHow>(v, group.encode);
  if (a.dequantized == nullptr) {
    store_codes(kCode, a.codes + unit * vector_bytes(kCode), codes);
    return;
  }
  float decoded[kVector];
  decode8_as<kCode>(codes, decoded);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    decoded[i] = (decoded[i] - group.encode.zero_point) * group.decode_scale;
  }
  store_vector(a.dequantized, a.dequantized_dtype, unit, decoded);
}

template <Encode kHow>
__device__ __forceinline__ GroupFactors from_lane(const Args& a,
                                                  const GroupFactors& own,
                                                  int lane) {
  GroupFactors group = own;
  group.encode.f = __shfl_sync(kAll, own.encode.f, lane);
  if constexpr (divides(kHow)) {
    group.encode.reciprocal = __shfl_sync(kAll, own.encode.reciprocal, lane);
    group.encode.is_moderate = is_moderate(group.encode.f);
  }
  if constexpr (kHow == Encode::kU4Divide) {
    group.encode.zero_point = __shfl_sync(kAll, own.encode.zero_point, lane);
  }
  if (a.dequantized != nullptr) {
    group.decode_scale = __shfl_sync(kAll, own.decode_scale, lane);
  }
  return group;
}

// Serves groups of 2^group_shift neighbouring vectors (up to a warp's), or for one scale for all
// (group_shift -1).  A thread takes kHeld vectors, kThreads apart, so the lanes of a group share
// kHeld groups.  Each of these lanes computes the factors of one group and passes them to the
// others.
template <typename T, Encode kHow>
__global__ void __launch_bounds__(kThreads, kResident<T>)
    quantize_flat_kernel(const __grid_constant__ Args a, int group_shift) {
  const int64_t num_units = a.rows * a.cols / kVector;
  const int64_t first = int64_t{blockIdx.x} * (kThreads * kHeld) + threadIdx.x;
  const T* x = static_cast<const T*>(a.x);
  Raw8<T> raw[kHeld] = {};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (first + i * kThreads < num_units) {
      raw[i] = load_raw(x + (first + i * kThreads) * kVector);
    }
  }
  const bool is_grouped = group_shift >= 0;
  const int group_units = is_grouped ? 1 << group_shift : 1;
  Range ranges[kHeld];
  GroupFactors own;
  if (is_grouped) {
    // Every lane takes part in the shuffles; vectors past the end are zeros in separate groups.
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      include<kHow>(ranges[i], raw[i]);
      ranges[i] = reduced(ranges[i], group_units, needs_min(kHow));
    }
  } else {
    own = make_group_as<kHow>(a, Range{}, 0, false);
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int lane_in_group = lane % group_units;
  const int num_turns = min(group_units, kHeld);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    GroupFactors group = own;
    if (is_grouped) {
      if (i % num_turns == 0) {
        const int turn = i + lane_in_group % num_turns;
        Range range = ranges[0];
#pragma unroll
        for (int j = 1; j < kHeld; ++j) {
          range = turn == j ? ranges[j] : range;
        }
        const int64_t unit = first + turn * kThreads;
        const bool is_writer = lane_in_group < num_turns && unit < num_units;
        own = make_group_as<kHow>(a, range, unit >> group_shift, is_writer);
      }
      group = from_lane<kHow>(a, own, lane - lane_in_group + i % num_turns);
    }
    if (first + i * kThreads < num_units) {
      float v[kVector];
      widen(raw[i], v);
      put_vector<kHow>(a, first + i * kThreads, v, group);
    }
  }
}

// Serves one group per row: a CTA takes a row.  Elements beyond kHeld vectors per thread are read
// twice.
template <typename T, Encode kHow>
__global__ void __launch_bounds__(kThreads, kResident<T>)
    quantize_rows_kernel(const __grid_constant__ Args a) {
  const int64_t row = blockIdx.x;
  const int64_t row_units = a.cols / kVector;
  const T* x = static_cast<const T*>(a.x) + row * a.cols;
  Raw8<T> raw[kHeld] = {};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t unit = threadIdx.x + i * int64_t{blockDim.x};
    if (unit < row_units) {
      raw[i] = load_raw(x + unit * kVector);
    }
  }
  Range range;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    include<kHow>(range, raw[i]);
  }
  const int64_t behind = threadIdx.x + kHeld * int64_t{blockDim.x};
  for (int64_t unit = behind; unit < row_units; unit += blockDim.x) {
    include<kHow>(range, load_raw(x + unit * kVector));
  }
  const GroupFactors group =
      make_group_as<kHow>(a, reduced_over_block(range, needs_min(kHow)), row, threadIdx.x == 0);
  float v[kVector];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t unit = threadIdx.x + i * int64_t{blockDim.x};
    if (unit < row_units) {
      widen(raw[i], v);
      put_vector<kHow>(a, row * row_units + unit, v, group);
    }
  }
  for (int64_t unit = behind; unit < row_units; unit += blockDim.x) {
    widen(load_raw(x + unit * kVector), v);
    put_vector<kHow>(a, row * row_units + unit, v, group);
  }
}

// A CTA takes a group, or a row when one scale serves all.  A thread takes packs of elements that
// share bytes.
template <typename T>
__global__ void __launch_bounds__(kThreads) quantize_groups_kernel(const __grid_constant__ Args a) {
  const Groups& g = a.groups;
  const int64_t row_begin = blockIdx.x / g.num_col_groups * g.group_rows;
  const int64_t row_end = min(a.rows, row_begin + g.group_rows);
  const int64_t col_begin = blockIdx.x % g.num_col_groups * g.group_cols;
  const int64_t width = min(a.cols, col_begin + g.group_cols) - col_begin;
  const T* x = static_cast<const T*>(a.x) + col_begin;

  const bool has_min = needs_min(a.how);
  Range range;
  if (!a.is_per_tensor) {
    const int64_t n = (row_end - row_begin) * width;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      include(range, load1(x + (row_begin + i / width) * a.cols + i % width), has_min);
    }
    range = reduced_over_block(range, has_min);
  }
  const GroupFactors group = make_group(a, a.spec, range, blockIdx.x, threadIdx.x == 0);

  const Code code = code_of(a.how);
  const int pack = pack_elements(code);
  const int64_t row_packs = width / pack;
  const int64_t num_packs = (row_end - row_begin) * row_packs;
  for (int64_t i = threadIdx.x; i < num_packs; i += blockDim.x) {
    const int64_t row = row_begin + i / row_packs;
    const int64_t col = i % row_packs * pack;
    uint32_t codes = 0;
    for (int j = 0; j < pack; ++j) {
      const int64_t at = row * a.cols + col + j;
      const uint32_t bits = encode1(a.how, load1(x + at), group.encode);
      codes |= bits << (j * code_bits(code));
      if (a.dequantized != nullptr) {
        const float value = (decode1(code, bits) - group.encode.zero_point) * group.decode_scale;
        store_element(a.dequantized, a.dequantized_dtype, col_begin + at, value);
      }
    }
    if (a.dequantized == nullptr) {
      uint8_t* to = a.codes + (row * a.cols + col_begin + col) / pack * pack_bytes(code);
      for (int j = 0; j < pack_bytes(code); ++j) {
        to[j] = static_cast<uint8_t>(codes >> (8 * j));
      }
    }
  }
}

// Whether each group is a power of two of vectors, up to a warp's.
bool is_flat_group(const Groups& g, int64_t cols) {
  const int64_t units = g.group_cols / kVector;
  return g.group_rows == 1 && g.group_cols % kVector == 0 && cols % g.group_cols == 0 &&
         units <= kWarp && (units & (units - 1)) == 0;
}

bool can_vectorize(const Args& a) {
  const size_t codes_alignment = vector_alignment(code_of(a.how));
  return a.cols % kVector == 0 && cuda::is_aligned(a.x, 16) &&
         cuda::is_aligned(a.codes, codes_alignment) && cuda::is_aligned(a.dequantized, 16);
}

// The logarithm of the vectors in a group.  REQUIRES: is_flat_group.
int group_shift_of(const Groups& g) {
  int shift = 0;
  while (kVector << shift < g.group_cols) {
    ++shift;
  }
  return shift;
}

// The fewest threads that need no more vectors each than kThreads threads would.
unsigned threads_for(int64_t row_units) {
  const int64_t per_thread = ceil_div(row_units, kThreads);
  return static_cast<unsigned>(ceil_div(ceil_div(row_units, per_thread), kWarp) * kWarp);
}

template <typename T>
void launch_quantize(const Args& a, cudaStream_t stream) {
  const Groups& g = a.groups;
  const bool vectorizes = can_vectorize(a);
  const int64_t num_units = a.rows * a.cols / kVector;
  if (vectorizes && (a.is_per_tensor || is_flat_group(g, a.cols))) {
    const int group_shift = a.is_per_tensor ? -1 : group_shift_of(g);
    const unsigned grid = grid_of(ceil_div(num_units, kThreads * kHeld));
    visit_encode(a.how, [&](auto how) {
      quantize_flat_kernel<T, decltype(how)::value><<<grid, kThreads, 0, stream>>>(a, group_shift);
    });
  } else if (vectorizes && g.group_rows == 1 && g.num_col_groups == 1) {
    const unsigned threads = threads_for(a.cols / kVector);
    visit_encode(a.how, [&](auto how) {
      quantize_rows_kernel<T, decltype(how)::value><<<grid_of(a.rows), threads, 0, stream>>>(a);
    });
  } else {
    const bool is_small = g.group_rows * g.group_cols <= 8 * kWarp;
    quantize_groups_kernel<T>
        <<<grid_of(g.num_row_groups * g.num_col_groups), is_small ? kWarp : kThreads, 0, stream>>>(
            a);
  }
  cuda::check_launch("quantize_kernel");
}

bool has_tensor_scale(const QuantizeSpec& spec) {
  return spec.group.is_per_tensor() || spec.format == QuantFormat::kNvfp4;
}

Args make_args(const Tensor& x, const QuantizeSpec& spec) {
  Args a{};
  a.spec = spec;
  a.how = encode_of(spec);
  a.rows = x.dim(0);
  a.cols = x.dim(1);
  a.is_per_tensor = spec.group.is_per_tensor();
  a.groups = groups_of(a.is_per_tensor ? GroupShape::per_token() : spec.group, a.rows, a.cols);
  a.x = x.raw();
  return a;
}

void launch(const Args& a, DType dtype, cudaStream_t stream) {
  if (a.rows > 0) {
    cuda::visit_float(dtype, [&](auto type) { launch_quantize<decltype(type)>(a, stream); });
  }
}

void quantize(const Tensor& x,
              const QuantizeSpec& spec,
              const Quantized& out,
              const Tensor& given_scale,
              const Stream& on) {
  const cuda::DeviceGuard guard(on);
  const cudaStream_t stream = cuda::as_stream(on);
  Args a = make_args(x, spec);
  if (has_tensor_scale(spec)) {
    float* scale = (a.is_per_tensor ? out.scale : out.global_scale).data<float>();
    launch_tensor_scale(x, spec, given_scale, scale, stream);
    a.tensor_scale = scale;
  }
  a.codes = static_cast<uint8_t*>(out.values.raw());
  a.scale = a.is_per_tensor ? nullptr : out.scale.raw();
  a.zero_point = spec.asymmetric ? out.zero_point.data<uint8_t>() : nullptr;
  launch(a, x.dtype(), stream);
}

void quantize_dequantize(const Tensor& x,
                         const QuantizeSpec& spec,
                         const Tensor& out,
                         const Tensor& given_scale,
                         const Stream& on) {
  const cuda::DeviceGuard guard(on);
  const cudaStream_t stream = cuda::as_stream(on);
  std::shared_ptr<void> scale;
  Args a = make_args(x, spec);
  if (has_tensor_scale(spec)) {
    const int64_t num_scales = spec.global_scale_per_row ? std::max<int64_t>(1, a.rows) : 1;
    scale = allocate_on(num_scales * int64_t{sizeof(float)}, on);
    auto* value = static_cast<float*>(scale.get());
    launch_tensor_scale(x, spec, given_scale, value, stream);
    a.tensor_scale = value;
  }
  a.dequantized = out.raw();
  a.dequantized_dtype = out.dtype();
  launch(a, x.dtype(), stream);
}

}  // namespace

}  // namespace device

const DeviceKernels cuda_kernels = {device::quantize, device::dequantize,
                                    device::quantize_dequantize};

}  // namespace moebius::quant
