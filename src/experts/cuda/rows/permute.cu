// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A stable counting sort of slots by local expert, with masked and foreign slots last.
// Up to kChunk slots take one CTA and one launch.  For more, a CTA per chunk counts its slots per
// bucket; in a second launch each CTA adds up all counts to find its first rows, and places its
// chunk.
#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>

#include "core/allocate.h"
#include "core/cuda/check.h"
#include "core/cuda/floats.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/ptx.cuh"
#include "core/ids.h"
#include "experts/cuda/rows/permute.h"

namespace moebius {

namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kWarpSlots = 256;
constexpr int kChunk = kWarps * kWarpSlots;
constexpr int kPerLane = kWarpSlots / kWarp;
constexpr int64_t kMaxLocalExperts = 1024;  // x 8 warps x 4 bytes of shared memory
constexpr unsigned kAll = 0xffffffffu;

struct Args {
  Ids ids;
  int64_t num_slots;
  int topk;
  const int32_t* map;  // nullptr: none
  int64_t num_ids;     // entries of the map
  int64_t first_expert;
  int num_buckets;  // L + 1; the last bucket is for masked and foreign slots
  int num_chunks;
  int64_t max_rows;
  int32_t* chunk_counts;  // [num_chunks, num_buckets]; nullptr with one chunk
  int32_t* expert_offsets;
  int32_t* expert_counts;
  int32_t* slot_of_row;
  int32_t* token_of_row;
  int32_t* row_of_slot;
  int32_t* cleared;  // [num_cleared]
  int num_cleared;
};

__device__ __forceinline__ int bucket_of(const Args& a, int32_t id) {
  const int none = a.num_buckets - 1;
  if (id < 0) {
    return none;
  }
  int64_t local = id - a.first_expert;
  if (a.map != nullptr) {
    local = id < a.num_ids ? a.map[id] : -1;
  }
  return local >= 0 && local < none ? static_cast<int>(local) : none;
}

// Replaces each of data[0, n) by the sum of what precedes it, by a whole CTA.
__device__ void exclusive_scan(int32_t* data, int n) {
  __shared__ int of_warp[kWarp];
  __shared__ int total_so_far;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int num_warps = static_cast<int>(blockDim.x) / kWarp;
  if (threadIdx.x == 0) {
    total_so_far = 0;
  }
  constexpr int kItems = 8;  // neighbours that a thread adds up by itself
  for (int begin = 0; begin < n; begin += kItems * static_cast<int>(blockDim.x)) {
    const int first = begin + kItems * static_cast<int>(threadIdx.x);
    int items[kItems];
    int own = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      items[i] = first + i < n ? data[first + i] : 0;
      own += items[i];
    }
    int sum = own;
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(kAll, sum, step);
      sum += lane >= step ? other : 0;
    }
    if (lane == kWarp - 1) {
      of_warp[warp] = sum;
    }
    __syncthreads();
    int before = total_so_far + sum - own;
    for (int w = 0; w < warp; ++w) {
      before += of_warp[w];
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (first + i < n) {
        data[first + i] = before;
      }
      before += items[i];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 0; w < num_warps; ++w) {
        total_so_far += of_warp[w];
      }
    }
    __syncthreads();
  }
}

// The two functions below find the buckets of this warp's slots of the CTA's chunk, 32 neighbours
// at a time; slots past the end have -1.  Why all at once: that takes one trip to memory instead of
// kPerLane.
__device__ __forceinline__ int64_t first_slot() {
  const unsigned warp = threadIdx.x / kWarp;
  return int64_t{blockIdx.x} * kChunk + warp * kWarpSlots + threadIdx.x % kWarp;
}
__device__ __forceinline__ void find_buckets(const Args& a, int (&buckets)[kPerLane]) {
  int32_t ids[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int64_t slot = first_slot() + i * kWarp;
    ids[i] = slot < a.num_slots ? a.ids[slot] : -1;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const bool exists = first_slot() + i * kWarp < a.num_slots;
    buckets[i] = exists ? bucket_of(a, ids[i]) : -1;
  }
}

__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ Args a) {
  extern __shared__ int32_t counts[];
  for (int b = static_cast<int>(threadIdx.x); b < a.num_buckets; b += kThreads) {
    counts[b] = 0;
  }
  __syncthreads();
  int buckets[kPerLane];
  find_buckets(a, buckets);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (buckets[i] >= 0) {
      atomicAdd(&counts[buckets[i]], 1);
    }
  }
  __syncthreads();
  for (int b = static_cast<int>(threadIdx.x); b < a.num_buckets; b += kThreads) {
    a.chunk_counts[int64_t{blockIdx.x} * a.num_buckets + b] = counts[b];
  }
}

// The slots of a bucket in chunks before this one, and in all chunks.
struct Sums {
  int before;
  int total;
};

__device__ Sums sums_of_chunks(const Args& a, int b) {
  Sums sums{};
#pragma unroll 8
  for (int chunk = 0; chunk < a.num_chunks; ++chunk) {
    const int count = a.chunk_counts[int64_t{chunk} * a.num_buckets + b];
    sums.before += chunk < static_cast<int>(blockIdx.x) ? count : 0;
    sums.total += count;
  }
  return sums;
}

// Places the slots of a chunk.  Dynamic shared memory has next [kWarps, num_buckets], the row of
// each warp's next slot of a bucket; starts [num_buckets], the first row of each bucket; and before
// [num_buckets], the slots of earlier chunks.
__global__ void __launch_bounds__(kThreads) place_kernel(const __grid_constant__ Args a) {
  extern __shared__ int32_t next[];
  ptx::await_kernel_before();
  ptx::let_next_begin();
  const int n = a.num_buckets;
  int32_t* starts = next + kWarps * n;
  int32_t* before = starts + n;
  int32_t* of_warp = next + static_cast<int>(threadIdx.x) / kWarp * n;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int buckets[kPerLane];
  find_buckets(a, buckets);
  for (int i = static_cast<int>(threadIdx.x); blockIdx.x == 0 && i < a.num_cleared; i += kThreads) {
    a.cleared[i] = 0;
  }
  for (int i = static_cast<int>(threadIdx.x); i < kWarps * n; i += kThreads) {
    next[i] = 0;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (buckets[i] >= 0) {
      atomicAdd(&of_warp[buckets[i]], 1);
    }
  }
  __syncthreads();
  for (int b = static_cast<int>(threadIdx.x); b < n; b += kThreads) {
    Sums sums{};
    if (a.chunk_counts != nullptr) {
      sums = sums_of_chunks(a, b);
    } else {
      for (int w = 0; w < kWarps; ++w) {
        sums.total += next[w * n + b];
      }
    }
    starts[b] = sums.total;
    before[b] = sums.before;
    if (blockIdx.x == 0 && a.expert_counts != nullptr && b < n - 1) {
      a.expert_counts[b] = sums.total;
    }
  }
  __syncthreads();
  exclusive_scan(starts, n);
  for (int b = static_cast<int>(threadIdx.x); b < n; b += kThreads) {
    int row = starts[b] + before[b];
    for (int w = 0; w < kWarps; ++w) {
      const int count = next[w * n + b];
      next[w * n + b] = row;
      row += count;
    }
    if (blockIdx.x == 0 && a.expert_offsets != nullptr) {
      a.expert_offsets[b] = starts[b];
    }
  }
  __syncthreads();
  // A warp places 32 neighbouring slots at a time, so that the rows of a bucket are in the order of
  // slots.
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int64_t slot = first_slot() + i * kWarp;
    const int bucket = buckets[i];
    const bool exists = bucket >= 0;
    const unsigned same = __match_any_sync(kAll, bucket);
    const unsigned earlier = same & ((1u << lane) - 1);
    const int row = exists ? of_warp[bucket] + __popc(earlier) : 0;
    __syncwarp();
    if (exists && earlier == 0) {
      of_warp[bucket] += __popc(same);
    }
    __syncwarp();
    if (!exists) {
      continue;
    }
    if (a.slot_of_row != nullptr) {
      a.slot_of_row[row] = static_cast<int32_t>(slot);
    }
    if (a.token_of_row != nullptr) {
      a.token_of_row[row] = static_cast<int32_t>(slot) / a.topk;
    }
    if (a.row_of_slot != nullptr) {
      int64_t place = row;
      if (bucket == n - 1) {
        place = -1;
      } else if (a.max_rows > 0) {
        const int index = row - starts[bucket];
        place = index < a.max_rows ? bucket * a.max_rows + index : -1;
      }
      a.row_of_slot[slot] = static_cast<int32_t>(place);
    }
  }
}

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
      std::clamp<int64_t>((rows.num_words + kWarp - 1) / kWarp * kWarp, kWarp, kThreads);
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

int32_t* data_or_null(const Tensor& tensor) {
  return tensor ? tensor.data<int32_t>() : nullptr;
}

}  // namespace

void cuda_order_slots(const CudaOrderArgs& args, const Stream& on) {
  if (args.num_local_experts > kMaxLocalExperts) {
    throw Unsupported(std::to_string(args.num_local_experts) +
                      " local experts, the order of rows on a GPU takes up to " +
                      std::to_string(kMaxLocalExperts));
  }
  const cuda::DeviceGuard guard(on.device().index);
  const cudaStream_t stream = cuda::as_stream(on.native_handle());
  Args a{};
  a.ids = Ids::of(args.ids);
  a.num_slots = args.ids.numel();
  a.topk = static_cast<int>(args.ids.dim(1));
  a.map = data_or_null(args.expert_map);
  a.num_ids = args.expert_map ? args.expert_map.dim(0) : 0;
  a.first_expert = args.first_expert;
  a.num_buckets = static_cast<int>(args.num_local_experts) + 1;
  a.num_chunks = static_cast<int>(std::max<int64_t>(1, (a.num_slots + kChunk - 1) / kChunk));
  a.max_rows = args.max_rows;
  a.expert_offsets = data_or_null(args.expert_offsets);
  a.expert_counts = data_or_null(args.expert_counts);
  a.slot_of_row = data_or_null(args.slot_of_row);
  a.token_of_row = data_or_null(args.token_of_row);
  a.row_of_slot = data_or_null(args.row_of_slot);
  a.cleared = data_or_null(args.cleared);
  a.num_cleared = args.cleared ? static_cast<int>(args.cleared.numel()) : 0;

  const auto bucket_bytes = sizeof(int32_t) * static_cast<size_t>(a.num_buckets);
  const auto chunks = static_cast<unsigned>(a.num_chunks);
  const bool is_one_chunk = a.num_chunks == 1;
  std::shared_ptr<void> counts;
  if (!is_one_chunk) {
    counts = allocate_on(static_cast<int64_t>(bucket_bytes) * a.num_chunks, on);
    a.chunk_counts = static_cast<int32_t*>(counts.get());
    count_kernel<<<chunks, kThreads, bucket_bytes, stream>>>(a);
    cuda::check_launch("count_kernel");
  }
  cuda::launch_early("place_kernel", place_kernel, chunks, kThreads, (kWarps + 2) * bucket_bytes,
                     stream, a);
}

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
  const cuda::DeviceGuard guard(on.device().index);
  const auto launch = word == 16  ? launch_permute<uint4>
                      : word == 4 ? launch_permute<uint32_t>
                                  : launch_permute<uint8_t>;
  launch(args, cuda::as_stream(on.native_handle()));
}

}  // namespace moebius
