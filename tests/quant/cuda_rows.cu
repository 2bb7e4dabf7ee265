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

// A thread takes eight elements (the last one may have fewer); with `is_single` it encodes them one
// by one.  All pointers of `row` are to device memory.
__global__ void encode_kernel(const EncodeRow row, bool is_single) {
  const int64_t first = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 8;
  if (first >= row.n) {
    return;
  }
  const int width = code_bits(code_of(row.how));
  const auto count = static_cast<int>(min(int64_t{8}, row.n - first));
  const auto factor = [&](int64_t i) {
    const int64_t j = i / row.group;
    return device::make_factor(row.factors[j],
                               row.how == Encode::kU4Divide ? row.zero_points[j] : 0);
  };
  float v[8] = {};
  for (int i = 0; i < count; ++i) {
    v[i] = load(row.x, row.dtype, first + i);
  }
  uint64_t bits = 0;
  if (is_single) {
    for (int i = 0; i < count; ++i) {
      const uint64_t code = device::encode1(row.how, v[i], factor(first + i));
      bits |= code << (i * width);
    }
  } else {
    bits = device::encode8(row.how, v, factor(first));
  }
  for (int i = 0; i < count * width / 8; ++i) {
    row.codes[first * width / 8 + i] = static_cast<uint8_t>(bits >> (8 * i));
  }
}

__global__ void decode_kernel(const DecodeRow row) {
  const int64_t first = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 8;
  if (first >= row.n) {
    return;
  }
  const int width = code_bits(row.code);
  const auto count = static_cast<int>(min(int64_t{8}, row.n - first));
  uint64_t bits = 0;
  for (int i = 0; i < count * width / 8; ++i) {
    bits |= static_cast<uint64_t>(row.codes[first * width / 8 + i]) << (8 * i);
  }
  float v[8];
  device::decode8(row.code, bits, v);
  for (int i = 0; i < count; ++i) {
    const int64_t j = (first + i) / row.group;
    const float zero_point = row.zero_points != nullptr ? row.zero_points[j] : 0.0f;
    device::store_element(row.out, row.dtype, first + i, (v[i] - zero_point) * row.scales[j]);
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

void encode(const EncodeRow& row) {
  if (row.n == 0) {
    return;
  }
  const cuda::DeviceGuard guard(place->device().index);
  const int64_t group_bytes = num_groups(row.n, row.group) * 4;
  const Tensor x = take(row.x, element_bytes(row.dtype, row.n));
  const Tensor factors = take(row.factors, group_bytes);
  const Tensor zero_points = take(row.zero_points, group_bytes);
  const Tensor codes =
      Tensor::empty({row.n * code_bits(code_of(row.how)) / 8}, DType::kU8, place->device());
  EncodeRow there = row;
  there.x = x.raw();
  there.factors = static_cast<const float*>(factors.raw());
  there.zero_points = static_cast<const float*>(zero_points.raw());
  there.codes = codes.data<uint8_t>();
  // Elements are encoded eight at a time only if they share a factor.
  encode_kernel<<<blocks((row.n + 7) / 8), 256, 0, handle()>>>(there, row.group < row.n);
  cuda::check_launch("encode_kernel");
  bring(codes, row.codes);
}

void decode(const DecodeRow& row) {
  if (row.n == 0) {
    return;
  }
  const cuda::DeviceGuard guard(place->device().index);
  const int64_t group_bytes = num_groups(row.n, row.group) * 4;
  const Tensor codes = take(row.codes, row.n * code_bits(row.code) / 8);
  const Tensor scales = take(row.scales, group_bytes);
  const Tensor zero_points =
      row.zero_points != nullptr ? take(row.zero_points, group_bytes) : Tensor{};
  const Tensor out = Tensor::empty({element_bytes(row.dtype, row.n)}, DType::kU8, place->device());
  DecodeRow there = row;
  there.codes = codes.data<uint8_t>();
  there.scales = static_cast<const float*>(scales.raw());
  there.zero_points = static_cast<const float*>(zero_points.raw());
  there.out = out.raw();
  decode_kernel<<<blocks((row.n + 7) / 8), 256, 0, handle()>>>(there);
  cuda::check_launch("decode_kernel");
  bring(out, row.out);
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
