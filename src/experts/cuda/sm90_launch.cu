// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "experts/cuda/sm90_kernel.cuh"

namespace moebius::cuda::sm90 {

namespace {

template <typename Config>
void launch_kernel(const Args& args, int num_sms, int index, cudaStream_t stream) {
  const auto kernel = grouped_gemm_kernel<Config>;
  constexpr auto kBytes = sizeof(Shared<Config>);
  allow_shared_bytes(index, reinterpret_cast<const void*>(kernel), kBytes);
  const int clusters = std::max(1, num_sms / kClusterSize);
  kernel<<<static_cast<unsigned>(clusters * kClusterSize), kThreads, kBytes, stream>>>(args);
  check_launch("grouped_gemm_kernel");
}

}  // namespace

void launch(
    const Args& args, bool is_fp8, bool to_f32, int num_sms, int index, cudaStream_t stream) {
  const auto run =
      is_fp8
          ? (to_f32 ? launch_kernel<Config<true, float>> : launch_kernel<Config<true, BFloat16>>)
          : (to_f32 ? launch_kernel<Config<false, float>> : launch_kernel<Config<false, BFloat16>>);
  run(args, num_sms, index, stream);
}

}  // namespace moebius::cuda::sm90
