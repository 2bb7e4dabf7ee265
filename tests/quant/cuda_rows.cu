// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "core/cuda/check.h"
#include "moebius/tensor.h"
#include "quant/cuda/elements.cuh"
#include "tests/quant/cuda_rows.h"

namespace moebius::quant {

namespace {

const Stream* place = nullptr;

Tensor take(const void* data, int64_t bytes) {
  const Tensor there = Tensor::empty({bytes}, DType::kU8, place->device());
  copy(Tensor::borrow(const_cast<void*>(data), {bytes}, DType::kU8), there, *place);
  return there;
}

void bring(const Tensor& from, void* to) {
  copy(from, Tensor::borrow(to, from.shape(), from.dtype()), *place);
  place->synchronize();
}

int64_t element_bytes(DType dtype, int64_t n) {
  return n * bits(dtype) / 8;
}

__device__ float load(const void* x, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kF32:
      return cuda::load1(static_cast<const float*>(x) + i);
    case DType::kBF16:
      return cuda::load1(static_cast<const BFloat16*>(x) + i);
    default:
      return cuda::load1(static_cast<const Float16*>(x) + i);
  }
}

__global__ void widen_kernel(const void* x, DType dtype, int64_t n, float* out) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) {
    out[i] = load(x, dtype, i);
  }
}

// A thread per eight elements, of which the last may be fewer; `is_single` goes one by one.
__global__ void encode_kernel(Encode how,
                              const void* x,
                              DType dtype,
                              int64_t n,
                              int64_t group,
                              const float* f,
                              const float* zero_points,
                              bool is_single,
                              uint8_t* codes) {
  const int64_t first = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 8;
  if (first >= n) {
    return;
  }
  const int width = code_bits(code_of(how));
  const auto count = static_cast<int>(min(int64_t{8}, n - first));
  const auto factor = [&](int64_t i) {
    return device::make_factor(f[i / group], how == Encode::kU4Divide ? zero_points[i / group] : 0);
  };
  uint64_t bits = 0;
  if (is_single) {
    for (int i = 0; i < count; ++i) {
      const uint64_t code = device::encode1(how, load(x, dtype, first + i), factor(first + i));
      bits |= code << (i * width);
    }
  } else {
    float v[8] = {};
    for (int i = 0; i < count; ++i) {
      v[i] = load(x, dtype, first + i);
    }
    bits = device::encode8(how, v, factor(first));
  }
  for (int i = 0; i < count * width / 8; ++i) {
    codes[first * width / 8 + i] = static_cast<uint8_t>(bits >> (8 * i));
  }
}

__global__ void decode_kernel(Code code,
                              const uint8_t* codes,
                              int64_t n,
                              int64_t group,
                              const float* scales,
                              const float* zero_points,
                              void* out,
                              DType dtype) {
  const int64_t first = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 8;
  if (first >= n) {
    return;
  }
  const int width = code_bits(code);
  const auto count = static_cast<int>(min(int64_t{8}, n - first));
  uint64_t bits = 0;
  for (int i = 0; i < count * width / 8; ++i) {
    bits |= static_cast<uint64_t>(codes[first * width / 8 + i]) << (8 * i);
  }
  float v[8];
  device::decode8(code, bits, v);
  for (int i = 0; i < count; ++i) {
    const int64_t j = (first + i) / group;
    const float zero_point = zero_points != nullptr ? zero_points[j] : 0.0f;
    device::store_element(out, dtype, first + i, (v[i] - zero_point) * scales[j]);
  }
}

cudaStream_t handle() {
  return cuda::as_stream(place->native_handle());
}

unsigned blocks(int64_t threads) {
  return static_cast<unsigned>((threads + 255) / 256);
}

int64_t num_groups(int64_t n, int64_t group) {
  return (n + group - 1) / group;
}

void encode(Encode how,
            const void* x,
            DType dtype,
            int64_t n,
            int64_t group,
            const float* f,
            const float* zero_points,
            uint8_t* codes) {
  if (n == 0) {
    return;
  }
  const cuda::DeviceGuard guard(place->device().index);
  const int64_t group_bytes = num_groups(n, group) * 4;
  const Tensor in = take(x, element_bytes(dtype, n));
  const Tensor factors = take(f, group_bytes);
  const Tensor zeros = take(zero_points, group_bytes);
  const Tensor out = Tensor::empty({n * code_bits(code_of(how)) / 8}, DType::kU8, place->device());
  // Eight at a time only where they share a factor.
  encode_kernel<<<blocks((n + 7) / 8), 256, 0, handle()>>>(
      how, in.raw(), dtype, n, group, static_cast<const float*>(factors.raw()),
      static_cast<const float*>(zeros.raw()), group < n, static_cast<uint8_t*>(out.raw()));
  cuda::check_launch("encode_kernel");
  bring(out, codes);
}

void decode(Code code,
            const uint8_t* codes,
            int64_t n,
            int64_t group,
            const float* scales,
            const float* zero_points,
            void* out,
            DType dtype) {
  if (n == 0) {
    return;
  }
  const cuda::DeviceGuard guard(place->device().index);
  const int64_t group_bytes = num_groups(n, group) * 4;
  const Tensor in = take(codes, n * code_bits(code) / 8);
  const Tensor factors = take(scales, group_bytes);
  const Tensor zeros = zero_points != nullptr ? take(zero_points, group_bytes) : Tensor{};
  const Tensor result = Tensor::empty({element_bytes(dtype, n)}, DType::kU8, place->device());
  decode_kernel<<<blocks((n + 7) / 8), 256, 0, handle()>>>(
      code, static_cast<const uint8_t*>(in.raw()), n, group,
      static_cast<const float*>(factors.raw()), static_cast<const float*>(zeros.raw()),
      result.raw(), dtype);
  cuda::check_launch("decode_kernel");
  bring(result, out);
}

void widen(const void* x, DType dtype, int64_t n, float* out) {
  if (n == 0) {
    return;
  }
  const cuda::DeviceGuard guard(place->device().index);
  const Tensor in = take(x, element_bytes(dtype, n));
  const Tensor result = Tensor::empty({4 * n}, DType::kU8, place->device());
  widen_kernel<<<blocks(n), 256, 0, handle()>>>(in.raw(), dtype, n,
                                                static_cast<float*>(result.raw()));
  cuda::check_launch("widen_kernel");
  bring(result, out);
}

}  // namespace

RowKernels cuda_rows(const Stream& stream) {
  place = &stream;
  return {nullptr, encode, decode, widen};
}

}  // namespace moebius::quant
