// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "comm/device/sum_parts.h"
#include "core/cuda/check.h"
#include "moebius/float_types.h"
#include "moebius/tensor.h"

namespace moebius::comm {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 4096;

// Adds and rounds as sum_in_rank_order() in collectives.cc does.
template <typename T>
__global__ void sum_parts_kernel(
    const T* own, const T* others, int rank, int num_ranks, int64_t count, T* out) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    float sum = 0.0f;
    for (int source = 0; source < num_ranks; ++source) {
      const int slot = source - (source > rank ? 1 : 0);
      sum += static_cast<float>(source == rank ? own[i] : others[slot * count + i]);
    }
    out[i] = static_cast<T>(sum);
  }
}

template <typename T>
void launch(const RankParts& parts, const Tensor& out, const Stream& stream) {
  const int64_t blocks = std::min(kMaxBlocks, (out.numel() + kThreads - 1) / kThreads);
  sum_parts_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, cuda::as_stream(stream)>>>(
      reinterpret_cast<const T*>(parts.own), reinterpret_cast<const T*>(parts.others), parts.rank,
      parts.num_ranks, out.numel(), out.data<T>());
  cuda::check_launch("sum_parts_kernel");
}

}  // namespace

void launch_sum_parts(const RankParts& parts, const Tensor& out, const Stream& stream) {
  if (out.numel() == 0) {
    return;
  }
  const cuda::DeviceGuard guard(stream);
  switch (out.dtype()) {
    case DType::kF32:
      return launch<float>(parts, out, stream);
    case DType::kBF16:
      return launch<BFloat16>(parts, out, stream);
    default:
      return launch<Float16>(parts, out, stream);
  }
}

}  // namespace moebius::comm
