// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Quantization on the GPU.  Bound by memory: a matrix is read once (twice where one scale serves
// all of it) and its codes written once.  4096 x 7168 bf16 to fp8 by 1x128 is 58.7 + 29.4 + 0.9 MB,
// 21.2 us at 4.2 TB/s; to int8 per token 88.1 MB, 21.0 us.
//
// Three walks, all of vectors of eight elements where alignment allows:
//   flat    groups of 8, 16, .. 256 elements that tile the rows, or one scale for all: the matrix
//           is one long array, a group is neighbouring lanes of a warp
//   rows    one group per row: one CTA, which keeps the row in registers
//   groups  anything else (blocks of rows, odd lengths): one CTA per group, element by element
#include <algorithm>
#include <cassert>

#include "core/cuda/check.h"
#include "core/cuda/scratch.h"
#include "quant/cuda/elements.cuh"
#include "quant/cuda/kernels.h"
#include "quant/group_rule.h"
#include "quant/groups.h"

namespace moebius::quant {

namespace device {

namespace {

using cuda::load1;
using cuda::load_raw;
using cuda::Raw8;
using cuda::widen;

constexpr int kThreads = 256;
constexpr int kHeld = 4;      // vectors that a thread requests before it computes: 64 bytes of bf16
constexpr int kResident = 4;  // CTAs per SM, so 64 KiB of requests on their way; needs 64 registers
constexpr int kWarp = 32;
constexpr unsigned kAll = 0xffffffffu;

struct Args {
  QuantizeSpec spec;
  Encode how;
  int64_t rows;
  int64_t cols;
  Groups groups;
  bool is_per_tensor;
  const void* x;
  const float* tensor_scale;  // nullptr: there is none
  // Quantizing: where to.  All nullptr when `dequantized` is given instead.
  uint8_t* codes;
  void* scale;  // nullptr per tensor
  uint8_t* zero_point;
  void* dequantized;
  DType dequantized_dtype;
  bool needs_min;  // the scale depends on more than the largest |x|
};

// A group's code as elements need it.
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

// The factors of group `index`, which the thread with is_writer stores.
__device__ GroupFactors make_group(const Args& a,
                                   const Range& range,
                                   int64_t index,
                                   bool is_writer) {
  const float tensor_scale = a.tensor_scale != nullptr ? *a.tensor_scale : 0.0f;
  const GroupCode group = group_code(a.spec, range, tensor_scale);
  const DType dtype = scale_dtype_of(a.spec.format);
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

// NaN passed over.  Without needs_min only range.max changes, to the largest |v|.
__device__ __forceinline__ void include(Range& range, float v, bool needs_min) {
  if (needs_min) {
    range.min = fminf(range.min, v);
    range.max = fmaxf(range.max, v);
  } else {
    range.max = fmaxf(range.max, fabsf(v));
  }
}

__device__ __forceinline__ void include(Range& range, const float (&v)[kVector], bool needs_min) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    include(range, v[i], needs_min);
  }
}

// Over neighbouring `lanes` (a power of two) of a warp; every lane gets the result.
__device__ __forceinline__ Range reduced(Range range, int lanes, bool needs_min) {
  for (int step = lanes / 2; step > 0; step /= 2) {
    range.max = fmaxf(range.max, __shfl_xor_sync(kAll, range.max, step));
    if (needs_min) {
      range.min = fminf(range.min, __shfl_xor_sync(kAll, range.min, step));
    }
  }
  return range;
}

// Over the CTA.  REQUIRES: blockDim.x is a multiple of kWarp; called once per kernel.
__device__ Range reduced_over_block(Range range, bool needs_min) {
  __shared__ float2 of_warp[kThreads / kWarp];
  const int num_warps = static_cast<int>(blockDim.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  range = reduced(range, kWarp, needs_min);
  if (num_warps == 1) {
    return range;
  }
  if (lane == 0) {
    of_warp[threadIdx.x / kWarp] = {range.min, range.max};
  }
  __syncthreads();
  const float2 other = lane < num_warps ? of_warp[lane] : float2{0.0f, 0.0f};
  return reduced({other.x, other.y}, kWarp, needs_min);
}

__device__ __forceinline__ void put_vector(const Args& a,
                                           int64_t unit,
                                           const float (&v)[kVector],
                                           const GroupFactors& group) {
  const Code code = code_of(a.how);
  const uint64_t codes = encode8(a.how, v, group.encode);
  if (a.dequantized == nullptr) {
    store_codes(code, a.codes + unit * vector_bytes(code), codes);
    return;
  }
  float decoded[kVector];
  decode8(code, codes, decoded);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    decoded[i] = (decoded[i] - group.encode.zero_point) * group.decode_scale;
  }
  store_vector(a.dequantized, a.dequantized_dtype, unit, decoded);
}

// Groups of group_units neighbouring vectors (a power of two up to 32), or one scale for all
// (group_units 0).  Each thread takes kHeld vectors, kThreads apart.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    quantize_flat_kernel(const __grid_constant__ Args a, int group_units) {
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
  GroupFactors group;
  if (group_units == 0) {
    group = make_group(a, Range{}, 0, false);
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t unit = first + i * kThreads;
    float v[kVector];
    widen(raw[i], v);
    if (group_units != 0) {
      // Every lane takes part in the shuffles; units past the end are zeros in groups of their own.
      Range own;
      include(own, v, a.needs_min);
      const Range range = reduced(own, group_units, a.needs_min);
      const bool is_writer =
          unit < num_units && threadIdx.x % static_cast<unsigned>(group_units) == 0;
      group = make_group(a, range, unit / group_units, is_writer);
    }
    if (unit < num_units) {
      put_vector(a, unit, v, group);
    }
  }
}

// One group per row and CTA; what does not fit into kHeld vectors per thread is read again.
template <typename T>
__global__ void __launch_bounds__(kThreads, kResident)
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
  float v[kVector];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    widen(raw[i], v);
    include(range, v, a.needs_min);
  }
  const int64_t behind = threadIdx.x + kHeld * int64_t{blockDim.x};
  for (int64_t unit = behind; unit < row_units; unit += blockDim.x) {
    widen(load_raw(x + unit * kVector), v);
    include(range, v, a.needs_min);
  }
  const GroupFactors group =
      make_group(a, reduced_over_block(range, a.needs_min), row, threadIdx.x == 0);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t unit = threadIdx.x + i * int64_t{blockDim.x};
    if (unit < row_units) {
      widen(raw[i], v);
      put_vector(a, row * row_units + unit, v, group);
    }
  }
  for (int64_t unit = behind; unit < row_units; unit += blockDim.x) {
    widen(load_raw(x + unit * kVector), v);
    put_vector(a, row * row_units + unit, v, group);
  }
}

// One group per CTA (per tensor: one row).  A thread takes packs of elements that share bytes.
template <typename T>
__global__ void __launch_bounds__(kThreads) quantize_groups_kernel(const __grid_constant__ Args a) {
  const Groups& g = a.groups;
  const int64_t row_begin = blockIdx.x / g.num_col_groups * g.group_rows;
  const int64_t row_end = min(a.rows, row_begin + g.group_rows);
  const int64_t col_begin = blockIdx.x % g.num_col_groups * g.group_cols;
  const int64_t width = min(a.cols, col_begin + g.group_cols) - col_begin;
  const T* x = static_cast<const T*>(a.x) + col_begin;

  Range range;
  if (!a.is_per_tensor) {
    const int64_t n = (row_end - row_begin) * width;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      include(range, load1(x + (row_begin + i / width) * a.cols + i % width), a.needs_min);
    }
    range = reduced_over_block(range, a.needs_min);
  }
  const GroupFactors group = make_group(a, range, blockIdx.x, threadIdx.x == 0);

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

// *largest = max(*largest, |x|), NaN passed over.  REQUIRES: *largest is 0 or a bound already.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    absmax_kernel(const T* x, int64_t n, bool is_aligned, float* largest) {
  Range range;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t num_units = is_aligned ? n / kVector : 0;
  for (int64_t unit = thread; unit < num_units; unit += kHeld * step) {
    Raw8<T> raw[kHeld] = {};
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (unit + i * step < num_units) {
        raw[i] = load_raw(x + (unit + i * step) * kVector);
      }
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      float v[kVector];
      widen(raw[i], v);
      include(range, v, /*needs_min=*/false);
    }
  }
  for (int64_t i = num_units * kVector + thread; i < n; i += step) {
    include(range, load1(x + i), /*needs_min=*/false);
  }
  range = reduced_over_block(range, /*needs_min=*/false);
  if (threadIdx.x == 0) {
    // Floats that are not negative are ordered as their bits are.
    atomicMax(reinterpret_cast<int*>(largest), __float_as_int(range.absmax()));
  }
}

__global__ void tensor_scale_kernel(QuantFormat format, float* absmax_to_scale) {
  *absmax_to_scale = tensor_scale(format, *absmax_to_scale);
}

// A power of two of vectors in each group, up to a warp's.
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

unsigned grid_of(int64_t blocks) {
  assert(blocks <= 0x7fffffff);
  return static_cast<unsigned>(blocks);
}

template <typename T>
void launch_quantize(const Args& a, cudaStream_t stream) {
  const Groups& g = a.groups;
  const bool vectorizes = can_vectorize(a);
  const int64_t num_units = a.rows * a.cols / kVector;
  if (vectorizes && (a.is_per_tensor || is_flat_group(g, a.cols))) {
    const int group_units = a.is_per_tensor ? 0 : static_cast<int>(g.group_cols / kVector);
    const unsigned grid = grid_of(ceil_div(num_units, kThreads * kHeld));
    quantize_flat_kernel<T><<<grid, kThreads, 0, stream>>>(a, group_units);
  } else if (vectorizes && g.group_rows == 1 && g.num_col_groups == 1) {
    // As few threads as the same number of vectors for each allows.
    const int64_t row_units = a.cols / kVector;
    const int64_t per_thread = ceil_div(row_units, kThreads);
    const int64_t threads = ceil_div(ceil_div(row_units, per_thread), kWarp) * kWarp;
    quantize_rows_kernel<T><<<grid_of(a.rows), static_cast<unsigned>(threads), 0, stream>>>(a);
  } else {
    const bool is_small = g.group_rows * g.group_cols <= 8 * kWarp;
    quantize_groups_kernel<T>
        <<<grid_of(g.num_row_groups * g.num_col_groups), is_small ? kWarp : kThreads, 0, stream>>>(
            a);
  }
  cuda::check_launch("quantize_kernel");
}

// *scale = the tensor's scale: the given one, or from the maximum.
void launch_tensor_scale(
    const Tensor& x, QuantFormat format, const Tensor& given, float* scale, cudaStream_t stream) {
  if (given.defined()) {
    cuda::check_cuda(
        cudaMemcpyAsync(scale, given.raw(), sizeof(float), cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync of a scale");
    return;
  }
  cuda::check_cuda(cudaMemsetAsync(scale, 0, sizeof(float), stream), "cudaMemsetAsync of a scale");
  cuda::visit_float(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool is_aligned = cuda::is_aligned(x.raw(), 16);
    constexpr int64_t kMaxBlocks = 132 * 8;
    const int64_t blocks =
        std::min(kMaxBlocks, ceil_div(x.numel(), int64_t{kThreads} * kHeld * kVector));
    if (blocks > 0) {
      absmax_kernel<T>
          <<<grid_of(blocks), kThreads, 0, stream>>>(x.data<T>(), x.numel(), is_aligned, scale);
      cuda::check_launch("absmax_kernel");
    }
  });
  tensor_scale_kernel<<<1, 1, 0, stream>>>(format, scale);
  cuda::check_launch("tensor_scale_kernel");
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
  a.needs_min = a.how == Encode::kU4Divide;
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
  const cuda::DeviceGuard guard(on.device().index);
  const cudaStream_t stream = cuda::as_stream(on.native_handle());
  Args a = make_args(x, spec);
  if (has_tensor_scale(spec)) {
    float* scale = (a.is_per_tensor ? out.scale : out.global_scale).data<float>();
    launch_tensor_scale(x, spec.format, given_scale, scale, stream);
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
  const cuda::DeviceGuard guard(on.device().index);
  const cudaStream_t stream = cuda::as_stream(on.native_handle());
  const cuda::Scratch scale(sizeof(float), on);
  Args a = make_args(x, spec);
  if (has_tensor_scale(spec)) {
    launch_tensor_scale(x, spec.format, given_scale, scale.as<float>(), stream);
    a.tensor_scale = scale.as<float>();
  }
  a.dequantized = out.raw();
  a.dequantized_dtype = out.dtype();
  launch(a, x.dtype(), stream);
}

// Scales of a matrix in rows and columns of groups.
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
  const uint8_t* zero_point;  // nullptr: all default_zero_point
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
      value.scale = decode1(Code::kE4M3, static_cast<const uint8_t*>(a.scale)[i]) / *a.global_scale;
      break;
    default:
      value.scale = static_cast<const float*>(a.scale)[i];
  }
  return value;
}

// A thread per vector of eight, all of one group.
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

// A thread per pack of elements that share bytes.
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

void dequantize(const Quantized& q, const QuantizeSpec& spec, const Tensor& out, const Stream& on) {
  const cuda::DeviceGuard guard(on.device().index);
  const cudaStream_t stream = cuda::as_stream(on.native_handle());
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
    dequantize_vectors_kernel<<<grid_of(ceil_div(n / kVector, kThreads)), kThreads, 0, stream>>>(a);
  } else {
    const int64_t packs = n / pack_elements(a.code);
    dequantize_packs_kernel<<<grid_of(ceil_div(packs, kThreads)), kThreads, 0, stream>>>(a);
  }
  cuda::check_launch("dequantize_kernel");
}

}  // namespace

}  // namespace device

const DeviceKernels cuda_kernels = {device::quantize, device::dequantize,
                                    device::quantize_dequantize};

}  // namespace moebius::quant
