// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A stable counting sort of slots by local expert, with masked and foreign slots last, as the CTAs
// of a kernel do it.  Up to kChunk slots take one CTA.  For more, chunk_counts has the slots of
// each chunk by bucket, and a CTA per chunk adds up all of them to find its first rows.
#pragma once

#include <cstdint>

#include "core/cuda/ptx.cuh"
#include "core/cuda/slot_order.h"

namespace moebius::slots {

inline constexpr int kWarp = 32;
inline constexpr int kWarps = 8;
inline constexpr int kThreads = kWarps * kWarp;
inline constexpr int kWarpSlots = 256;
inline constexpr int kChunk = kWarps * kWarpSlots;
inline constexpr int kPerLane = kWarpSlots / kWarp;
inline constexpr unsigned kAll = 0xffffffffu;
inline constexpr int kFew = 256;
inline constexpr int kShareSlots = 256;

__device__ __forceinline__ int bucket_of(const SlotSort& a, int32_t id) {
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

// Returns the sum of `own` of this lane and of those before it.  All lanes of a warp call it.
__device__ __forceinline__ int sum_up_to_lane(int own) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int sum = own;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kAll, sum, step);
    sum += lane >= step ? other : 0;
  }
  return sum;
}

// Replaces each of data[0, n) by the sum of what precedes it, by a whole CTA.
__device__ __forceinline__ void exclusive_scan(int32_t* data, int n) {
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
    const int sum = sum_up_to_lane(own);
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

// A warp does the same by fewer instructions.
__device__ __forceinline__ void exclusive_scan_of_warp(int32_t* data, int n) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int so_far = 0;
  for (int first = 0; first < n; first += kWarp) {
    const int i = first + lane;
    const int own = i < n ? data[i] : 0;
    const int sum = sum_up_to_lane(own);
    if (i < n) {
      data[i] = so_far + sum - own;
    }
    so_far += __shfl_sync(kAll, sum, kWarp - 1);
  }
}

// The slots of this warp in a chunk are first_slot() of the first lane and those that follow it,
// a.warp_slots in all.
__device__ __forceinline__ int64_t first_slot(const SlotSort& a, int chunk) {
  const unsigned warp = threadIdx.x / kWarp;
  return int64_t{chunk} * kChunk + int64_t{warp} * a.warp_slots + threadIdx.x % kWarp;
}
// Finds the buckets of a warp's slots, 32 neighbours at a time; where it has no slot, the bucket is
// -1.  Why all at once: that takes one trip to memory instead of kPerLane.
__device__ __forceinline__ void find_buckets(const SlotSort& a,
                                             int chunk,
                                             int (&buckets)[kPerLane]) {
  int32_t ids[kPerLane];
  const auto exists = [&](int i) {
    return i * kWarp < a.warp_slots && first_slot(a, chunk) + i * kWarp < a.num_slots;
  };
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    ids[i] = exists(i) ? a.ids[first_slot(a, chunk) + i * kWarp] : -1;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    buckets[i] = exists(i) ? bucket_of(a, ids[i]) : -1;
  }
}

// The slots of a bucket in chunks before this one, and in all chunks.
struct Sums {
  int before;
  int total;
};

__device__ __forceinline__ Sums sums_of_chunks(const SlotSort& a, int chunk, int b) {
  Sums sums{};
#pragma unroll 8
  for (int other = 0; other < a.num_chunks; ++other) {
    const int count = a.chunk_counts[int64_t{other} * a.num_buckets + b];
    sums.before += other < chunk ? count : 0;
    sums.total += count;
  }
  return sums;
}

// Places the slots of a chunk, by a CTA of kThreads.  `next` is shared memory of
// SlotSort::shared_bytes(): next [kWarps, num_buckets], the row of each warp's next slot of a
// bucket; starts [num_buckets], the first row of each bucket; and before [num_buckets], the slots
// of earlier chunks.
__device__ __forceinline__ void place_slots(const SlotSort& a, int chunk, int32_t* next) {
  const int n = a.num_buckets;
  int32_t* starts = next + kWarps * n;
  int32_t* before = starts + n;
  int32_t* of_warp = next + static_cast<int>(threadIdx.x) / kWarp * n;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int buckets[kPerLane];
  find_buckets(a, chunk, buckets);
  for (int i = static_cast<int>(threadIdx.x); chunk == 0 && i < a.num_cleared; i += kThreads) {
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
      sums = sums_of_chunks(a, chunk, b);
    } else {
      for (int w = 0; w < kWarps; ++w) {
        sums.total += next[w * n + b];
      }
    }
    starts[b] = sums.total;
    before[b] = sums.before;
    if (chunk == 0 && a.expert_counts != nullptr && b < n - 1) {
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
    if (chunk == 0 && a.expert_offsets != nullptr) {
      a.expert_offsets[b] = starts[b];
    }
  }
  __syncthreads();
  // A warp places 32 neighbouring slots at a time, so that the rows of a bucket are in the order of
  // slots.
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int64_t slot = first_slot(a, chunk) + i * kWarp;
    if (__all_sync(kAll, buckets[i] < 0)) {
      break;  // the whole warp is past its end
    }
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

// Stores which row a slot of a bucket has, in the two outputs of a SlotOrder that tell it.
__device__ __forceinline__ void store_row(const SlotSort& a, int64_t slot, int bucket, int row) {
  a.row_of_slot[slot] = bucket < a.num_buckets - 1 ? row : -1;
  a.token_of_row[row] = static_cast<int32_t>(slot) / a.topk;
}

// Makes a SlotOrder of up to kFew slots, by a CTA of any size.  `keys` is shared memory of kFew
// words, aligned to 16 bytes.  Each slot is compared with all others.  Why not place_slots(): its
// code is several times as long, and a kernel that comes to it late waits until memory has brought
// it (5 us of a call).
__device__ __forceinline__ void place_few_slots(const SlotSort& a, int32_t* keys) {
  constexpr int kAtOnce = 4;
  const int num_slots = static_cast<int>(a.num_slots);
  const int num_threads = static_cast<int>(blockDim.x);
  for (int slot = static_cast<int>(threadIdx.x); slot < kFew; slot += num_threads) {
    // The words that fill up the last load count as behind all buckets.
    keys[slot] = slot < num_slots ? bucket_of(a, a.ids[slot]) : a.num_buckets;
  }
  if (threadIdx.x < a.num_cleared) {
    a.cleared[threadIdx.x] = 0;
  }
  __syncthreads();
  // A thread takes slot i, and bucket i.
  const int end = max(num_slots, a.num_buckets);
  for (int i = static_cast<int>(threadIdx.x); i < end; i += num_threads) {
    const int own = i < num_slots ? keys[i] : 0;
    int row = 0;
    int start = 0;
    int count = 0;
    for (int slot = 0; slot < num_slots; slot += kAtOnce) {
      const int4 loaded = *reinterpret_cast<const int4*>(keys + slot);
      const int others[kAtOnce] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        row += others[j] < own || (others[j] == own && slot + j < i) ? 1 : 0;
        start += others[j] < i ? 1 : 0;
        count += others[j] == i ? 1 : 0;
      }
    }
    if (i < num_slots) {
      store_row(a, i, own, row);
    }
    if (i < a.num_buckets) {
      a.expert_offsets[i] = start;
    }
    if (i < a.num_buckets - 1 && a.expert_counts != nullptr) {
      a.expert_counts[i] = count;
    }
  }
}

// The shared memory of a CTA that calls place_block(), in words.
__host__ __device__ constexpr int block_words(int num_warps, int num_buckets) {
  return (num_warps + 1) * num_buckets;
}

// Makes a SlotOrder by one CTA, which has a thread for each slot or more.  `counts` is shared
// memory of block_words().
__device__ __forceinline__ void place_block(const SlotSort& a, int32_t* counts) {
  const int n = a.num_buckets;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto num_threads = static_cast<int>(blockDim.x);
  const int num_warps = num_threads / kWarp;
  int32_t* of_warp = counts + thread / kWarp * n;
  int32_t* starts = counts + num_warps * n;
  const bool has_slot = thread < a.num_slots;
  const int own = has_slot ? bucket_of(a, a.ids[thread]) : n;
  for (int i = thread; i < num_warps * n; i += num_threads) {
    counts[i] = 0;
  }
  if (thread < a.num_cleared) {
    a.cleared[thread] = 0;
  }
  const unsigned same = __match_any_sync(kAll, own);
  const int earlier = __popc(same & ((1u << thread % kWarp) - 1));
  __syncthreads();
  if (has_slot && earlier == 0) {
    of_warp[own] = __popc(same);
  }
  __syncthreads();
  for (int b = thread; b < n; b += num_threads) {
    int total = 0;
#pragma unroll 4
    for (int w = 0; w < num_warps; ++w) {
      const int count = counts[w * n + b];
      counts[w * n + b] = total;  // what earlier warps have
      total += count;
    }
    starts[b] = total;
    if (b < n - 1 && a.expert_counts != nullptr) {
      a.expert_counts[b] = total;
    }
  }
  __syncthreads();
  if (thread < kWarp) {
    exclusive_scan_of_warp(starts, n);
  }
  __syncthreads();
  if (has_slot) {
    store_row(a, thread, own, starts[own] + of_warp[own] + earlier);
  }
  for (int b = thread; b < n; b += num_threads) {
    a.expert_offsets[b] = starts[b];
  }
}

// The shared memory of a CTA that calls place_share(), in words.
__host__ __device__ constexpr int share_words(int num_buckets) {
  return kShareSlots + 3 * num_buckets;
}

// Makes a SlotOrder by the CTAs of a cluster, which is the grid.  Each has `num` neighbouring
// slots, at most kShareSlots and no more than it has threads, and the first CTA has the first of
// them.  `memory` is shared memory of share_words().  Its code is a third of that of place_slots(),
// since a warp alone sums the counts, by fewer instructions than exclusive_scan() has.
__device__ __forceinline__ void place_share(const SlotSort& a,
                                            int64_t first,
                                            int num,
                                            int32_t* memory) {
  const int n = a.num_buckets;
  int32_t* keys = memory;
  int32_t* counts = keys + kShareSlots;  // of this CTA's slots, by bucket
  int32_t* starts = counts + n;
  int32_t* before = starts + n;  // the slots of earlier CTAs
  const auto thread = static_cast<int>(threadIdx.x);
  const auto num_threads = static_cast<int>(blockDim.x);
  const auto rank = static_cast<int>(ptx::cluster_rank());
  const bool has_slot = thread < num;
  const int64_t slot = first + thread;
  const int own = has_slot ? bucket_of(a, a.ids[slot]) : -1;
  if (thread < kShareSlots) {
    keys[thread] = own;
  }
  for (int b = thread; b < n; b += num_threads) {
    counts[b] = 0;
  }
  if (rank == 0 && thread < a.num_cleared) {
    a.cleared[thread] = 0;
  }
  __syncthreads();
  if (has_slot) {
    atomicAdd(&counts[own], 1);
  }
  // pairs with the wait of all CTAs: their counts are complete.
  ptx::cluster_arrive();
  int earlier = 0;
  for (int other = 0; other < num; other += 4) {
    const int4 four = *reinterpret_cast<const int4*>(keys + other);
    earlier += (four.x == own && other < thread) + (four.y == own && other + 1 < thread) +
               (four.z == own && other + 2 < thread) + (four.w == own && other + 3 < thread);
  }
  ptx::cluster_wait();
  for (int b = thread; b < n; b += num_threads) {
    int total = 0;
    int sum = 0;
    for (int cta = 0; cta < static_cast<int>(gridDim.x); ++cta) {
      const int count =
          ptx::ld_cluster_int(ptx::cluster_address(&counts[b], static_cast<uint32_t>(cta)));
      total += count;
      sum += cta < rank ? count : 0;
    }
    starts[b] = total;
    before[b] = sum;
    if (rank == 0 && b < n - 1) {
      a.expert_counts[b] = total;
    }
  }
  // pairs with the wait below: this CTA reads nothing more of others.
  ptx::cluster_arrive();
  __syncthreads();
  if (thread < kWarp) {
    exclusive_scan_of_warp(starts, n);
  }
  __syncthreads();
  if (has_slot) {
    store_row(a, slot, own, starts[own] + before[own] + earlier);
  }
  for (int b = thread; rank == 0 && b < n; b += num_threads) {
    a.expert_offsets[b] = starts[b];
  }
  ptx::cluster_wait();
}

}  // namespace moebius::slots
