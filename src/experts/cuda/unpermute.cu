// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/cuda/check.h"
#include "core/cuda/floats.cuh"
#include "experts/cuda/unpermute.h"

namespace moebius::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

// A block per slot.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    unpermute_kernel(const Word* rows, const int32_t* row_of_slot, int64_t row_words, Word* out) {
  const int64_t row = row_of_slot[blockIdx.x];
  const Word* from = rows + row * row_words;
  Word* to = out + int64_t{blockIdx.x} * row_words;
  for (int64_t i = threadIdx.x; i < row_words; i += blockDim.x) {
    to[i] = row >= 0 ? from[i] : Word{};
  }
}

template <typename Word>
void launch(const Tensor& rows,
            const Tensor& row_of_slot,
            const Tensor& out,
            int64_t bytes,
            cudaStream_t stream) {
  const auto words = bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t threads = std::clamp<int64_t>((words + kWarp - 1) / kWarp * kWarp, kWarp, kThreads);
  unpermute_kernel<Word>
      <<<static_cast<unsigned>(row_of_slot.numel()), static_cast<unsigned>(threads), 0, stream>>>(
          static_cast<const Word*>(rows.raw()), row_of_slot.data<int32_t>(), words,
          static_cast<Word*>(out.raw()));
  check_launch("unpermute_kernel");
}

}  // namespace

void unpermute_rows(const Tensor& rows,
                    const Tensor& row_of_slot,
                    const Tensor& out,
                    const Stream& on) {
  if (out.numel() == 0) {
    return;
  }
  const DeviceGuard guard(on.device().index);
  const int64_t bytes = row_bytes(out.dtype(), out.dim(1));
  const bool fits = bytes % 16 == 0 && is_aligned(rows.raw(), 16) && is_aligned(out.raw(), 16);
  const auto run = fits ? launch<uint4> : launch<uint16_t>;
  run(rows, row_of_slot, out, bytes, as_stream(on.native_handle()));
}

}  // namespace moebius::cuda
