// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/ceil_div.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "experts/cuda/gemm/dequant/pack_codes.h"
#include "experts/cuda/gemm/dequant/packed_e2m1.cuh"
#include "experts/cuda/gemm/dequant/packed_e4m3.cuh"
#include "quant/cuda/elements.cuh"

namespace moebius::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 4096;
constexpr int64_t kScaledWords = 2;  // of codes that share a scale of nvfp4

// A thread takes the words of a scale.  scales: those of nvfp4, or nullptr.
__global__ void __launch_bounds__(kThreads)
    pack_codes_kernel(uint32_t* words, uint8_t* scales, int64_t num_scales) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < num_scales;
       i += int64_t{gridDim.x} * kThreads) {
    packed_e4m3::Packed by{0, ~0u, 0u};
    if (scales != nullptr) {
      by = packed_e4m3::packed(quant::device::decode1(quant::Code::kE4M3, scales[i]));
      scales[i] = by.scale;
    }
    for (int64_t w = i * kScaledWords; w < (i + 1) * kScaledWords; ++w) {
      words[w] = packed_e2m1::packed((words[w] & by.mask) ^ by.signs);
    }
  }
}

}  // namespace

void pack_codes(const WeightOperand& w, const Stream& stream) {
  const int64_t num_words = w.values.nbytes() / int64_t{sizeof(uint32_t)};
  const int64_t num_scales = num_words / kScaledWords;
  if (num_scales == 0) {
    return;
  }
  const Tensor& scale = w.quant.scale;
  const bool is_nvfp4 = w.quant.format == QuantFormat::kNvfp4;
  const DeviceGuard guard(stream.device().index);
  const auto blocks =
      static_cast<unsigned>(std::min(ceil_div(num_scales, int64_t{kThreads}), kMostBlocks));
  pack_codes_kernel<<<blocks, kThreads, 0, as_stream(stream.native_handle())>>>(
      static_cast<uint32_t*>(w.values.raw()),
      is_nvfp4 ? static_cast<uint8_t*>(scale.raw()) : nullptr, num_scales);
  check_launch("pack_codes_kernel");
}

}  // namespace moebius::cuda
