// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/cuda/check.h"
#include "core/cuda/ptx.cuh"
#include "tests/core/cuda_kernels.h"

namespace moebius {

namespace {

constexpr int kThreads = 256;

__device__ bool becomes_nonzero(const int* flag) {
  const uint64_t deadline = ptx::globaltimer() + uint64_t{kPatienceMs} * 1'000'000;
  while (*static_cast<const volatile int*>(flag) == 0) {
    if (ptx::globaltimer() > deadline) {
      return false;
    }
  }
  return true;
}

__global__ void fill_kernel(uint8_t* bytes, int64_t count, uint8_t value) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) {
    bytes[i] = value;
  }
}

__global__ void wait_for_flag_kernel(int* started, int* flag) {
  *static_cast<volatile int*>(started) = 1;
  __threadfence_system();
  if (becomes_nonzero(flag)) {
    *static_cast<volatile int*>(flag) = 2;
  }
}

__global__ void meet_kernel(int* own, int* other, int* met) {
  *static_cast<volatile int*>(own) = 1;
  __threadfence_system();
  *met = becomes_nonzero(other) ? 1 : 2;
}

__global__ void multiply_add_kernel(
    const float* a, const float* b, const float* c, float* out, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) {
    out[i] = a[i] * b[i] + c[i];
  }
}

cudaStream_t handle(const Stream& stream) {
  return cuda::as_stream(stream.native_handle());
}

unsigned blocks(int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

void launch_fill(const Stream& stream, uint8_t* bytes, int64_t count, uint8_t value) {
  const cuda::DeviceGuard guard(stream.device().index);
  fill_kernel<<<blocks(count), kThreads, 0, handle(stream)>>>(bytes, count, value);
  cuda::check_launch("fill_kernel");
}

void launch_wait_for_flag(const Stream& stream, int* started, int* flag) {
  const cuda::DeviceGuard guard(stream.device().index);
  wait_for_flag_kernel<<<1, 1, 0, handle(stream)>>>(started, flag);
  cuda::check_launch("wait_for_flag_kernel");
}

void launch_meet(const Stream& stream, bool is_cooperative, int* own, int* other, int* met) {
  const cuda::DeviceGuard guard(stream.device().index);
  if (!is_cooperative) {
    meet_kernel<<<1, 1, 0, handle(stream)>>>(own, other, met);
    cuda::check_launch("meet_kernel");
    return;
  }
  void* args[] = {&own, &other, &met};
  cuda::check_cuda(cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(&meet_kernel), dim3(1),
                                               dim3(1), args, 0, handle(stream)),
                   "meet_kernel");
}

void launch_multiply_add(const Stream& stream,
                         const float* a,
                         const float* b,
                         const float* c,
                         float* out,
                         int64_t count) {
  const cuda::DeviceGuard guard(stream.device().index);
  multiply_add_kernel<<<blocks(count), kThreads, 0, handle(stream)>>>(a, b, c, out, count);
  cuda::check_launch("multiply_add_kernel");
}

}  // namespace moebius
