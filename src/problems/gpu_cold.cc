// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "problems/gpu_cold.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <thread>

#include "core/cuda/check.h"
#include "problems/place.h"

namespace moebius::bench {

namespace {

// Products at full rate take a GPU to its power limit within milliseconds.  With pauses in between,
// every call finds it in the same state, whatever ran before.
constexpr auto kPause = std::chrono::milliseconds(4);

}  // namespace

ColdGpu::ColdGpu(int device_index)
    : stream_(Stream::cuda(device_index)),
      flush_(Tensor::zeros({int64_t{256} << 20}, DType::kU8, stream_.device())) {}

Tensor ColdGpu::take(const Tensor& tensor) const {
  return testing::Place(stream_).take(tensor);
}

void ColdGpu::poison(const Tensor& tensor) const {
  cuda::check_cuda(cudaMemsetAsync(tensor.raw(), 0xff, static_cast<size_t>(tensor.nbytes()),
                                   cuda::as_stream(stream_.native_handle())),
                   "cudaMemsetAsync");
}

double ColdGpu::seconds(const std::function<void()>& work) const {
  stream_.synchronize();
  std::this_thread::sleep_for(kPause);
  cuda::check_cuda(cudaMemsetAsync(flush_.raw(), 0, static_cast<size_t>(flush_.nbytes()),
                                   cuda::as_stream(stream_.native_handle())),
                   "cudaMemsetAsync");
  const Event begin = stream_.record_timed();
  work();
  const Event end = stream_.record_timed();
  return std::chrono::duration<double>(end.since(begin)).count();
}

}  // namespace moebius::bench
