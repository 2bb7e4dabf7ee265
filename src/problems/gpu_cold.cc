// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "problems/gpu_cold.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <thread>

#include "core/cuda/check.h"
#include "problems/gpu_read.h"
#include "problems/place.h"

namespace moebius::bench {

namespace {

// Products at full rate take a GPU to its power limit within milliseconds.  With pauses in between,
// every call finds it in the same state, whatever ran before.
constexpr auto kPause = std::chrono::milliseconds(4);

// Enqueues setting every byte of a tensor.
void fill(const Tensor& tensor, int byte, const Stream& stream) {
  cuda::check_cuda(cudaMemsetAsync(tensor.raw(), byte, static_cast<size_t>(tensor.nbytes()),
                                   cuda::as_stream(stream)),
                   "cudaMemsetAsync");
}

}  // namespace

L2Flush::L2Flush(Device device, L2Lines lines)
    : lines_(lines), zeros_(Tensor::zeros({int64_t{256} << 20}, DType::kU8, device)) {}

void L2Flush::flush(const Stream& stream) const {
  if (lines_ == L2Lines::kRead) {
    read_zeros(zeros_, stream);
  } else {
    fill(zeros_, 0, stream);
  }
}

ColdGpu::ColdGpu(L2Lines lines, int device_index)
    : stream_(Stream::cuda(device_index)), l2_(stream_.device(), lines) {}

Tensor ColdGpu::take(const Tensor& tensor) const {
  return testing::Place(stream_).take(tensor);
}

void ColdGpu::poison(const Tensor& tensor) const {
  fill(tensor, 0xff, stream_);
}

double ColdGpu::seconds(const std::function<void()>& work) const {
  stream_.synchronize();
  std::this_thread::sleep_for(kPause);
  l2_.flush(stream_);
  const Event begin = stream_.record_timed();
  work();
  const Event end = stream_.record_timed();
  return std::chrono::duration<double>(end.since(begin)).count();
}

}  // namespace moebius::bench
