// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstddef>

#include "app/bench/gpu/peak.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/wgmma.cuh"
#include "moebius/tensor.h"
#include "problems/gpu_read.h"

namespace moebius::bench {

namespace {

constexpr int kRepeats = 7;
constexpr int kWarpgroup = 128;
constexpr int kWarpgroups = 2;  // of a block: one issues products while those of the other run
constexpr int kRowBytes = 128;  // 64 of k in bf16, 128 in f8e4m3
constexpr int kSteps = 4;       // products along a row
constexpr int kRows = 64;       // of a product

struct Bf16 {
  static constexpr int kColumns = 256;
  static constexpr int kDepth = 16;  // k of a product
  static __device__ void multiply(float (&sums)[kColumns / 2], uint64_t a, uint64_t b) {
    ptx::Wgmma<kColumns>::bf16(sums, a, b, true);
  }
};
struct F8e4m3 {
  static constexpr int kColumns = 128;
  static constexpr int kDepth = 32;
  static __device__ void multiply(float (&sums)[kColumns / 2], uint64_t a, uint64_t b) {
    ptx::Wgmma<kColumns>::e4m3(sums, a, b, true);
  }
};

// The operands are 1 in f8e4m3 and 4e-5 in bf16.  `unused` is never written, but the compiler does
// not know that.
template <typename Type>
__global__ void __launch_bounds__(kWarpgroups* kWarpgroup, 1)
    multiply_kernel(int rounds, float* unused) {
  constexpr int kBytes = (kRows + Type::kColumns) * kRowBytes;
  __shared__ alignas(1024) std::byte operands[kBytes];
  for (int i = static_cast<int>(threadIdx.x); i < kBytes / 4; i += static_cast<int>(blockDim.x)) {
    reinterpret_cast<uint32_t*>(operands)[i] = 0x38383838u;
  }
  ptx::fence_proxy_async_shared();
  __syncthreads();
  const uint32_t a = ptx::wgmma_descriptor_low(ptx::shared_address(operands));
  const uint32_t b = ptx::wgmma_descriptor_low(ptx::shared_address(operands + kRows * kRowBytes));
  float sums[Type::kColumns / 2] = {};
  for (int round = 0; round < rounds; ++round) {
    ptx::wgmma_pin(sums);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      Type::multiply(sums, ptx::wgmma_descriptor(a + 2 * step),
                     ptx::wgmma_descriptor(b + 2 * step));
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
  }
  ptx::wgmma_wait<0>();
  ptx::wgmma_pin(sums);
  float total = 0;
  for (const float sum : sums) {
    total += sum;
  }
  if (total < 0) {
    *unused = total;
  }
}

// Returns the seconds of one launch, the best of a few measurements, since disturbances can only
// slow down.  The first measurement only loads the kernel.  Each makes several launches in a row,
// so that the time from host to GPU does not matter.
template <typename Launch>
double best_seconds(const Stream& stream, const Launch& launch) {
  constexpr int kLaunches = 8;
  const cuda::DeviceGuard guard(stream);
  double best = 0;
  for (int i = 0; i <= kRepeats; ++i) {
    const Event begin = stream.record_timed();
    for (int j = 0; j < kLaunches; ++j) {
      launch(cuda::as_stream(stream));
      cuda::check_launch("peak of a GPU");
    }
    const Event end = stream.record_timed();
    const double seconds = std::chrono::duration<double>(end.since(begin)).count() / kLaunches;
    best = i <= 1 ? seconds : std::min(best, seconds);
  }
  return best;
}

template <typename Type>
double gflops(const Stream& stream) {
  constexpr int kRounds = 2000;  // about 0.5 ms
  const int num_sms = cuda::num_sms(stream.device().index);
  const Tensor unused = Tensor::zeros({1}, DType::kF32, stream.device());
  const double seconds = best_seconds(stream, [&](cudaStream_t on) {
    multiply_kernel<Type><<<static_cast<unsigned>(num_sms), kWarpgroups * kWarpgroup, 0, on>>>(
        kRounds, unused.data<float>());
  });
  const double products = double{kRounds} * kSteps * kWarpgroups * num_sms;
  return products * 2 * kRows * Type::kColumns * Type::kDepth / seconds * 1e-9;
}

}  // namespace

// Tensor cores multiply integers of 8 bits as fast as f8e4m3.
ComputePeak gpu_compute_peak(Operand operand, const Stream& stream) {
  if (operand == Operand::kFp8 || operand == Operand::kInt8) {
    return {"tensor cores f8e4m3", gflops<F8e4m3>(stream)};
  }
  return {"tensor cores bf16", gflops<Bf16>(stream)};
}

double gpu_read_gb_per_s(const Stream& stream) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const Tensor bytes = Tensor::zeros({kBytes}, DType::kU8, stream.device());
  const double seconds = best_seconds(stream, [&](cudaStream_t) { read_zeros(bytes, stream); });
  return static_cast<double>(kBytes) / seconds * 1e-9;
}

}  // namespace moebius::bench
