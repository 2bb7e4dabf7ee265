// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A stable counting sort of slots by local expert, masked and foreign ones last.
// Up to kChunk slots: one CTA and one launch.  More: a CTA per chunk counts its slots per bucket,
// one CTA turns the counts into first rows, then each places its chunk.
#include <algorithm>
#include <string>

#include "core/cuda/check.h"
#include "core/cuda/floats.cuh"
#include "core/cuda/scratch.h"
#include "experts/cuda/permute.h"

namespace moebius {

namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kWarpSlots = 256;
constexpr int kChunk = kWarps * kWarpSlots;
constexpr int kScanThreads = 1024;
constexpr int64_t kMaxLocalExperts = 1024;  // x 8 warps x 4 bytes of shared memory
constexpr unsigned kAll = 0xffffffffu;

struct Args {
  const int32_t* ids;
  int64_t num_slots;
  const int32_t* map;  // nullptr: none
  int64_t num_ids;     // entries of the map
  int64_t first_expert;
  int num_buckets;  // L + 1; the last is for what is masked or foreign
  int num_chunks;
  int64_t max_rows;
  int32_t* starts;  // [num_buckets, num_chunks]; nullptr with one chunk
  int32_t* expert_offsets;
  int32_t* slot_of_row;
  int32_t* row_of_slot;
};

__device__ __forceinline__ int bucket_of(const Args& a, int64_t slot) {
  const int none = a.num_buckets - 1;
  const int32_t id = a.ids[slot];
  if (id < 0) {
    return none;
  }
  int64_t local = id - a.first_expert;
  if (a.map != nullptr) {
    local = id < a.num_ids ? a.map[id] : -1;
  }
  return local >= 0 && local < none ? static_cast<int>(local) : none;
}

// data[0, n) = sums of what precedes each, in place, by a whole CTA.
__device__ void exclusive_scan(int32_t* data, int n) {
  __shared__ int of_warp[kWarp];
  __shared__ int total_so_far;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int num_warps = static_cast<int>(blockDim.x) / kWarp;
  if (threadIdx.x == 0) {
    total_so_far = 0;
  }
  constexpr int kItems = 8;  // neighbours that a thread adds by itself
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

// Slots of this warp's part of the CTA's chunk.
struct Part {
  int64_t begin;
  int64_t end;
};

__device__ __forceinline__ Part part_of(const Args& a) {
  const int64_t begin = int64_t{blockIdx.x} * kChunk + threadIdx.x / kWarp * int64_t{kWarpSlots};
  return {min(begin, a.num_slots), min(begin + kWarpSlots, a.num_slots)};
}

__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ Args a) {
  extern __shared__ int32_t counts[];
  for (int b = static_cast<int>(threadIdx.x); b < a.num_buckets; b += kThreads) {
    counts[b] = 0;
  }
  __syncthreads();
  const int64_t begin = int64_t{blockIdx.x} * kChunk;
  for (int64_t i = begin + threadIdx.x; i < min(begin + kChunk, a.num_slots); i += kThreads) {
    atomicAdd(&counts[bucket_of(a, i)], 1);
  }
  __syncthreads();
  for (int b = static_cast<int>(threadIdx.x); b < a.num_buckets; b += kThreads) {
    a.starts[int64_t{b} * a.num_chunks + blockIdx.x] = counts[b];
  }
}

__global__ void __launch_bounds__(kScanThreads) scan_kernel(const __grid_constant__ Args a) {
  exclusive_scan(a.starts, a.num_buckets * a.num_chunks);
  __syncthreads();
  if (a.expert_offsets != nullptr) {
    for (int b = static_cast<int>(threadIdx.x); b < a.num_buckets; b += kScanThreads) {
      a.expert_offsets[b] = a.starts[int64_t{b} * a.num_chunks];
    }
  }
}

// Dynamic shared memory: next [kWarps, num_buckets], the row of each warp's next slot of a bucket;
// with one chunk also starts [num_buckets].
__global__ void __launch_bounds__(kThreads) place_kernel(const __grid_constant__ Args a) {
  extern __shared__ int32_t next[];
  const int n = a.num_buckets;
  int32_t* own_starts = next + kWarps * n;
  int32_t* of_warp = next + static_cast<int>(threadIdx.x) / kWarp * n;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int i = static_cast<int>(threadIdx.x); i < kWarps * n; i += kThreads) {
    next[i] = 0;
  }
  __syncthreads();
  const Part part = part_of(a);
  for (int64_t i = part.begin + lane; i < part.end; i += kWarp) {
    atomicAdd(&of_warp[bucket_of(a, i)], 1);
  }
  __syncthreads();
  if (a.starts == nullptr) {
    for (int b = static_cast<int>(threadIdx.x); b < n; b += kThreads) {
      int total = 0;
      for (int w = 0; w < kWarps; ++w) {
        total += next[w * n + b];
      }
      own_starts[b] = total;
    }
    __syncthreads();
    exclusive_scan(own_starts, n);
    __syncthreads();
  }
  for (int b = static_cast<int>(threadIdx.x); b < n; b += kThreads) {
    int row =
        a.starts == nullptr ? own_starts[b] : a.starts[int64_t{b} * a.num_chunks + blockIdx.x];
    for (int w = 0; w < kWarps; ++w) {
      const int count = next[w * n + b];
      next[w * n + b] = row;
      row += count;
    }
    if (a.starts == nullptr && a.expert_offsets != nullptr) {
      a.expert_offsets[b] = own_starts[b];
    }
  }
  __syncthreads();
  // Neighbouring slots one warp at a time, so that rows of a bucket are in the order of slots.
  for (int64_t begin = part.begin; begin < part.end; begin += kWarp) {
    const int64_t slot = begin + lane;
    const bool exists = slot < part.end;
    const int bucket = exists ? bucket_of(a, slot) : -1;
    const unsigned same = __match_any_sync(kAll, bucket);
    const unsigned before = same & ((1u << lane) - 1);
    const int row = exists ? of_warp[bucket] + __popc(before) : 0;
    __syncwarp();
    if (exists && before == 0) {
      of_warp[bucket] += __popc(same);
    }
    __syncwarp();
    if (!exists) {
      continue;
    }
    if (a.slot_of_row != nullptr) {
      a.slot_of_row[row] = static_cast<int32_t>(slot);
    }
    if (a.row_of_slot != nullptr) {
      int64_t place = row;
      if (bucket == n - 1) {
        place = -1;
      } else if (a.max_rows > 0) {
        const int first =
            a.starts == nullptr ? own_starts[bucket] : a.starts[int64_t{bucket} * a.num_chunks];
        place = row - first < a.max_rows ? bucket * a.max_rows + (row - first) : -1;
      }
      a.row_of_slot[slot] = static_cast<int32_t>(place);
    }
  }
}

// A CTA per token reads its row once and writes it to up to K places.
template <typename Word>
__global__ void permute_rows_kernel(const Word* x,
                                    const int32_t* row_of_slot,
                                    int topk,
                                    int64_t row_words,
                                    int64_t max_rows,
                                    Word* out) {
  constexpr int kHeld = 4;
  const int64_t token = blockIdx.x;
  x += token * row_words;
  row_of_slot += token * topk;
  const int64_t step = blockDim.x;
  for (int64_t begin = threadIdx.x; begin < row_words; begin += kHeld * step) {
    Word words[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (begin + i * step < row_words) {
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
        if (begin + i * step < row_words) {
          out[row * row_words + begin + i * step] = words[i];
        }
      }
    }
  }
}

template <typename Word>
void launch_permute(const Tensor& x,
                    const Tensor& row_of_slot,
                    const Tensor& out,
                    int64_t bytes,
                    cudaStream_t stream) {
  const auto words = bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t threads = std::clamp<int64_t>((words + kWarp - 1) / kWarp * kWarp, kWarp, kThreads);
  permute_rows_kernel<Word>
      <<<static_cast<unsigned>(x.dim(0)), static_cast<unsigned>(threads), 0, stream>>>(
          static_cast<const Word*>(x.raw()), row_of_slot.data<int32_t>(),
          static_cast<int>(row_of_slot.dim(1)), words, out.dim(0), static_cast<Word*>(out.raw()));
  cuda::check_launch("permute_rows_kernel");
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
  a.ids = args.ids.data<int32_t>();
  a.num_slots = args.ids.numel();
  a.map = data_or_null(args.expert_map);
  a.num_ids = args.expert_map ? args.expert_map.dim(0) : 0;
  a.first_expert = args.first_expert;
  a.num_buckets = static_cast<int>(args.num_local_experts) + 1;
  a.num_chunks = static_cast<int>(std::max<int64_t>(1, (a.num_slots + kChunk - 1) / kChunk));
  a.max_rows = args.max_rows;
  a.expert_offsets = data_or_null(args.expert_offsets);
  a.slot_of_row = data_or_null(args.slot_of_row);
  a.row_of_slot = data_or_null(args.row_of_slot);

  const auto bucket_bytes = sizeof(int32_t) * static_cast<size_t>(a.num_buckets);
  const auto chunks = static_cast<unsigned>(a.num_chunks);
  const bool is_one_chunk = a.num_chunks == 1;
  const cuda::Scratch starts(is_one_chunk ? 0 : static_cast<int64_t>(bucket_bytes) * a.num_chunks,
                             on);
  if (!is_one_chunk) {
    a.starts = starts.as<int32_t>();
    count_kernel<<<chunks, kThreads, bucket_bytes, stream>>>(a);
    cuda::check_launch("count_kernel");
    scan_kernel<<<1, kScanThreads, 0, stream>>>(a);
    cuda::check_launch("scan_kernel");
  }
  place_kernel<<<chunks, kThreads, (kWarps + 1) * bucket_bytes, stream>>>(a);
  cuda::check_launch("place_kernel");
}

void cuda_permute_rows(const Tensor& x,
                       const Tensor& row_of_slot,
                       const Tensor& out,
                       const Stream& on) {
  const int64_t bytes = row_bytes(x.dtype(), x.dim(1));
  if (x.dim(0) == 0 || bytes == 0) {
    return;
  }
  const cuda::DeviceGuard guard(on.device().index);
  const cudaStream_t stream = cuda::as_stream(on.native_handle());
  const auto fits = [&](int64_t word) {
    return bytes % word == 0 && cuda::is_aligned(x.raw(), static_cast<size_t>(word)) &&
           cuda::is_aligned(out.raw(), static_cast<size_t>(word));
  };
  const auto launch = fits(16)  ? launch_permute<uint4>
                      : fits(4) ? launch_permute<uint32_t>
                                : launch_permute<uint8_t>;
  launch(x, row_of_slot, out, bytes, stream);
}

}  // namespace moebius
