// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/cuda/check.h"
#include "core/cuda/row_arrivals.cuh"
#include "core/cuda/runtime.h"
#include "tests/comm/cuda/wave_reader.h"

namespace moebius::testing {

namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 4;

struct Rows {
  const int32_t* ids;  // [M, K] local, -1 = none
  int topk;
  const uint32_t* from;  // [M, words]
  uint32_t* to;
  int64_t num_rows;
  int64_t words;
};

__device__ int first_expert(const Rows& rows, int64_t row) {
  int first = 1 << 30;
  for (int k = 0; k < rows.topk; ++k) {
    const int32_t id = rows.ids[row * rows.topk + k];
    first = id >= 0 && id < first ? id : first;
  }
  return first;
}

__global__ void read_kernel(const RowArrivals::Signals signals, const Rows rows, int num_waves) {
  for (int wave = 0; wave < num_waves; ++wave) {
    if (threadIdx.x == 0) {
      cuda::await_wave(signals, wave);
    }
    __syncthreads();
    if (wave == 0) {
      continue;  // it brings the ids, and no rows
    }
    for (int64_t row = blockIdx.x; row < rows.num_rows; row += gridDim.x) {
      if (cuda::last_wave_of(signals, first_expert(rows, row)) != wave) {
        continue;
      }
      for (int64_t i = threadIdx.x; i < rows.words; i += kThreads) {
        rows.to[row * rows.words + i] = rows.from[row * rows.words + i];
      }
    }
  }
}

}  // namespace

Tensor read_by_waves(const DispatchOutput& output, const Stream& stream) {
  const Tensor& payload = output.payloads[0];
  const Tensor copy = Tensor::zeros(payload.shape(), payload.dtype(), payload.device());
  if (copy.numel() == 0) {
    return copy;
  }
  Rows rows{};
  rows.ids = output.topk_ids.data<int32_t>();
  rows.topk = static_cast<int>(output.topk_ids.dim(1));
  rows.from = reinterpret_cast<const uint32_t*>(payload.raw());
  rows.to = reinterpret_cast<uint32_t*>(copy.raw());
  rows.num_rows = payload.dim(0);
  rows.words = payload.nbytes() / payload.dim(0) / int64_t{sizeof(uint32_t)};
  const int num_waves = 2 + static_cast<int>(output.expert_num_tokens.numel() - 1) /
                                output.arrivals.signals.experts_per_wave;
  const cuda::DeviceGuard guard(stream.device().index);
  read_kernel<<<kBlocks, kThreads, 0, cuda::as_stream(stream.native_handle())>>>(
      output.arrivals.signals, rows, num_waves);
  cuda::check_launch("read_kernel");
  return copy;
}

}  // namespace moebius::testing
