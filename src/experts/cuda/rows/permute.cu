// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <initializer_list>

#include "core/cuda/check.h"
#include "core/cuda/floats.cuh"
#include "experts/cuda/rows/permute.h"

namespace moebius {

namespace {

constexpr int kWarp = 32;
constexpr int kMostThreads = 256;

// The rows of an operand and where they go, in words.
template <typename Word>
struct Rows {
  const Word* x;
  Word* out;
  int64_t num_words;  // of a row

  Rows(const Tensor& from, const Tensor& to)
      : x(from ? static_cast<const Word*>(from.raw()) : nullptr),
        out(from ? static_cast<Word*>(to.raw()) : nullptr),
        num_words(from ? row_bytes(from.dtype(), from.dim(1)) / static_cast<int64_t>(sizeof(Word))
                       : 0) {}
};

template <typename Word>
__device__ void permute_row(
    const Rows<Word>& rows, int64_t token, const int32_t* row_of_slot, int topk, int64_t max_rows) {
  constexpr int kHeld = 4;
  const Word* x = rows.x + token * rows.num_words;
  const int64_t step = blockDim.x;
  for (int64_t begin = threadIdx.x; begin < rows.num_words; begin += kHeld * step) {
    Word words[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (begin + i * step < rows.num_words) {
        words[i] = x[begin + i * step];
      }
    }
    for (int k = 0; k < topk; ++k) {
      const int32_t row = row_of_slot[k];
      if (row < 0 || row >= max_rows) {
        continue;
      }
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (begin + i * step < rows.num_words) {
          rows.out[row * rows.num_words + begin + i * step] = words[i];
        }
      }
    }
  }
}

// A CTA per token reads the token's row and its scales once, and writes them to up to K places.
template <typename Word>
__global__ void permute_rows_kernel(const __grid_constant__ Rows<Word> rows,
                                    const __grid_constant__ Rows<Word> scales,
                                    const int32_t* row_of_slot,
                                    int topk,
                                    int64_t max_rows) {
  const int64_t token = blockIdx.x;
  row_of_slot += token * topk;
  permute_row(rows, token, row_of_slot, topk, max_rows);
  permute_row(scales, token, row_of_slot, topk, max_rows);
}

template <typename Word>
void launch_permute(const CudaPermuteArgs& args, cudaStream_t stream) {
  const Rows<Word> rows(args.x, args.out);
  const int64_t threads =
      std::clamp<int64_t>((rows.num_words + kWarp - 1) / kWarp * kWarp, kWarp, kMostThreads);
  permute_rows_kernel<<<static_cast<unsigned>(args.x.dim(0)), static_cast<unsigned>(threads), 0,
                        stream>>>(rows, Rows<Word>(args.scale, args.out_scale),
                                  args.row_of_slot.data<int32_t>(),
                                  static_cast<int>(args.row_of_slot.dim(1)), args.out.dim(0));
  cuda::check_launch("permute_rows_kernel");
}

// The widest word, in bytes, by which the rows of all tensors can be moved.
int widest_word(std::initializer_list<Tensor> tensors) {
  for (const int word : {16, 4}) {
    if (std::all_of(tensors.begin(), tensors.end(), [&](const Tensor& rows) {
          return row_bytes(rows.dtype(), rows.dim(1)) % word == 0 &&
                 cuda::is_aligned(rows.raw(), static_cast<size_t>(word));
        })) {
      return word;
    }
  }
  return 1;
}

}  // namespace

void cuda_permute_rows(const CudaPermuteArgs& args, const Stream& on) {
  if (args.x.dim(0) == 0 || args.x.dim(1) == 0) {
    return;
  }
  const int word = widest_word({args.x, args.out});
  if (args.scale && widest_word({args.scale, args.out_scale}) < word) {
    cuda_permute_rows({args.x, args.row_of_slot, args.out}, on);
    cuda_permute_rows({args.scale, args.row_of_slot, args.out_scale}, on);
    return;
  }
  const cuda::DeviceGuard guard(on);
  const auto launch = word == 16  ? launch_permute<uint4>
                      : word == 4 ? launch_permute<uint32_t>
                                  : launch_permute<uint8_t>;
  launch(args, cuda::as_stream(on));
}

}  // namespace moebius
