// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/ceil_div.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "experts/cuda/gemm/dequant/pack_codes.h"
#include "experts/cuda/gemm/dequant/packed_e2m1.cuh"

namespace moebius::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 4096;

__global__ void __launch_bounds__(kThreads) pack_codes_kernel(uint32_t* words, int64_t num_words) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < num_words;
       i += int64_t{gridDim.x} * kThreads) {
    words[i] = packed_e2m1::packed(words[i]);
  }
}

}  // namespace

void pack_codes(const Tensor& codes, const Stream& stream) {
  const int64_t num_words = codes.nbytes() / int64_t{sizeof(uint32_t)};
  if (num_words == 0) {
    return;
  }
  const DeviceGuard guard(stream.device().index);
  const auto blocks =
      static_cast<unsigned>(std::min(ceil_div(num_words, int64_t{kThreads}), kMostBlocks));
  pack_codes_kernel<<<blocks, kThreads, 0, as_stream(stream.native_handle())>>>(
      static_cast<uint32_t*>(codes.raw()), num_words);
  check_launch("pack_codes_kernel");
}

}  // namespace moebius::cuda
