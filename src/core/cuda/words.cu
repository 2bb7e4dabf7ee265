// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/cuda/launch.cuh"
#include "core/cuda/ptx.cuh"
#include "core/cuda/words.h"

namespace moebius::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1024;

// Copies from `from`, or sets all words to `bits` when `from` is nullptr.
__global__ void __launch_bounds__(kThreads)
    words_kernel(uint32_t* to, const uint32_t* from, int64_t n, uint32_t bits) {
  ptx::await_kernel_before();
  ptx::let_next_begin();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * kThreads) {
    to[i] = from != nullptr ? from[i] : bits;
  }
}

void launch(void* to, const void* from, int64_t n, uint32_t bits, void* stream, int index) {
  if (n > 0) {
    const DeviceGuard guard(index);
    const auto blocks = std::min((n + kThreads - 1) / kThreads, kMaxBlocks);
    launch_early("words_kernel", words_kernel, static_cast<unsigned>(blocks), kThreads, 0,
                 as_stream(stream), static_cast<uint32_t*>(to), static_cast<const uint32_t*>(from),
                 n, bits);
  }
}

}  // namespace

void fill_words(void* to, int64_t num_words, uint32_t bits, void* stream, int index) {
  launch(to, nullptr, num_words, bits, stream, index);
}

void copy_words(void* to, const void* from, int64_t num_words, void* stream, int index) {
  launch(to, from, num_words, 0, stream, index);
}

}  // namespace moebius::cuda
