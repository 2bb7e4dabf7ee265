// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_cold.h"

#include <cuda_runtime_api.h>

#include "core/cuda/check.h"
#include "tests/conformance/place.h"

namespace moebius::bench {

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
  cuda::check_cuda(cudaMemsetAsync(flush_.raw(), 0, static_cast<size_t>(flush_.nbytes()),
                                   cuda::as_stream(stream_.native_handle())),
                   "cudaMemsetAsync");
  const Event begin = stream_.record_timed();
  work();
  const Event end = stream_.record_timed();
  return std::chrono::duration<double>(end.since(begin)).count();
}

}  // namespace moebius::bench
