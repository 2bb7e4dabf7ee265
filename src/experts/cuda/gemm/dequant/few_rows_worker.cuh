// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The work of a block in the GEMM of few_rows_gemm.cu, whose head says what is where and why.
// Longer than 500 lines: it is one class template, whose stages share registers and shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/cuda/mma.cuh"
#include "core/cuda/wgmma.cuh"
#include "experts/cuda/gemm/dequant/few_rows_decode.cuh"
#include "experts/cuda/gemm/tile_walk.cuh"
#include "experts/cuda/gemm/weight_values.cuh"

namespace moebius::cuda::few_rows {

inline constexpr unsigned kAll = 0xffffffffu;
inline constexpr int kWarp = 32;
inline constexpr int kWarps = 16;
inline constexpr int kThreads = kWarps * kWarp;
inline constexpr int kGroupWarps = 4;  // warps of a warpgroup
inline constexpr int kGroups = kWarps / kGroupWarps;
inline constexpr int kOwn = 16;  // columns of a warp
inline constexpr int kGroupColumns = kOwn * kGroupWarps;
inline constexpr int kColumns =
    kGroupColumns * kGroups;          // of a block whose warpgroups are one team
inline constexpr int kMostRows = 64;  // of a tile
inline constexpr int kSlab = 32;      // elements of k, for two products
inline constexpr int kPass = 256;     // elements of k
inline constexpr int kPassSlabs = kPass / kSlab;
inline constexpr int kStepBytes = 64;  // of a column's codes
inline constexpr int kStages = 7;

// Tiles have 64 rows x 64 of k and are swizzled as TMA does it.
inline constexpr int kTileBytes = kMostRows * 128;
inline constexpr int kRowsBytes = kPass / 64 * kTileBytes;
// Why 16 bytes are added: eight rows then lie in different banks.
inline constexpr int kRawStride = kPass * static_cast<int>(sizeof(BFloat16)) + 16;

struct Place {
  int group;
  int column;   // first
  int rows;     // of the tile
  int64_t row;  // first
};

struct __align__(1024) Shared {
  // While the sums of all warps are brought together, one of rows0 and rows1 is in use, and the
  // sums lie in the other and `raw`.
  uint8_t rows0[kRowsBytes];
  uint8_t raw[kMostRows * kRawStride];
  uint8_t rows1[kRowsBytes];
  uint8_t codes[kStages][kWarps][kOwn * kStepBytes];
  uint64_t raw_arrived;
  Place places[2];  // of the item at hand and the next
};
inline constexpr int kSumStride =
    (kRowsBytes + kMostRows * kRawStride) / (kMostRows * int{sizeof(float)});
static_assert(kSumStride == kColumns + 4);  // + 4: eight columns of four pairs of rows, no conflict
static_assert(offsetof(Shared, rows1) % 1024 == 0);

inline constexpr int kScaledAtEnd = 7;  // as scaled_mask

struct Args : GemmArgs {
  int across;  // blocks of columns
  int passes;
  int team_shift;   // 1 << team_shift teams
  int scale_shift;  // 1 << scale_shift columns share a scale
  int scaled_mask;  // sums are scaled after slab s of a step if (s + 1) & scaled_mask == 0
};

// Scales by their types; uint8_t is e8m0.
__device__ __forceinline__ float scale_value(float bits) {
  return bits;
}
__device__ __forceinline__ float scale_value(BFloat16 bits) {
  return load1(&bits);
}
__device__ __forceinline__ float scale_value(Float16 bits) {
  return load1(&bits);
}
__device__ __forceinline__ float scale_value(uint8_t bits) {
  return e8m0_to_float(bits);
}

// Scale: uint8_t is e8m0, uint16_t is two neighbours of e4m3.  kRows: the most rows of a tile.
template <Code kCode, typename Scale, int kRows>
struct Worker {
  static constexpr int kStepSlabs = kStepBytes * 8 / quant::code_bits(kCode) / kSlab;
  static constexpr int kPassSteps = kPassSlabs / kStepSlabs;  // of all teams
  static constexpr int kWords = quant::code_bits(kCode) / 4;  // of eight codes
  static constexpr bool kFolds = kCode == Code::kE2M1;
  // The slabs whose products are begun together, as many as there are registers for.
  static constexpr int kBatch = kFolds && kRows < 64 ? 2 : 1;
  static constexpr bool kHasZeros = kCode == Code::kU4 || kCode == Code::kI8;
  static constexpr bool kMayBeLarge = kFolds && std::is_same_v<Scale, uint8_t>;

  using Sums = float[kRows / 2];

  const Args& p;
  Shared& shared;
  const TileStarts& starts;
  int num_items;

  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int warp = ptx::uniform(static_cast<int>(threadIdx.x) / kWarp);
  int quad = lane / 4;  // its columns are quad and quad + 8 of the warp's
  int part = lane % 4;  // which eight of every slab it has
  int team;
  int warp_column;

  // The codes that have not yet been asked for.
  int ahead_item;
  int ahead_steps;    // of the item; 0: there are no more
  int ahead_columns;  // from the lane's first on
  int ahead_bytes;    // of a column, from the lane's chunk on
  const uint8_t* ahead_from;

  int slot = 0;
  int live = 0;  // which of `rows` is in use

  // The scales of the next step, as they lie in memory.
  int first_scale[2];
  Scale next_scale[2];
  uint8_t next_zero[2];
  // Those of this step: factors of sums, and what decode_pairs() takes.
  float scale[2];
  uint32_t by[2];

  __device__ Worker(const Args& args, Shared& memory, const TileStarts& tiles)
      : p(args), shared(memory), starts(tiles) {
    num_items = starts.before[p.rows.num_groups] * p.across;
    by[0] = by[1] = zeros(p.w.default_zero_point);
    const int group = warp / kGroupWarps;
    const int side_by_side = kGroups >> p.team_shift;
    team = group / side_by_side;
    warp_column = group % side_by_side * kGroupColumns + warp % kGroupWarps * kOwn;
  }

  __device__ int num_steps() const { return p.passes * (kPassSteps >> p.team_shift); }
  __device__ int column_of(const Place& place, int i) const {
    return min(place.column + warp_column + quad + 8 * i, p.n - 1);
  }

  __device__ Place find(int item) const {
    const TilePlace tile = find_tile(p.rows, starts, item / p.across, kRows);
    const int rows = static_cast<int>(min(tile.end - tile.begin, int64_t{kRows}));
    return {tile.group, item % p.across * (kColumns >> p.team_shift), rows, tile.begin};
  }

  // The functions that follow bring codes.

  __device__ __forceinline__ void start_ahead(int item) {
    ahead_item = item;
    ahead_steps = 0;
    if (item < num_items) {
      const Place place = find(item);
      const int n = place.column + warp_column + quad;
      const int first = team * kStepBytes + part * 16;
      ahead_steps = num_steps();
      ahead_columns = p.n - n;
      ahead_bytes = static_cast<int>(p.w.row_bytes) - first;
      ahead_from = p.w.values + (int64_t{place.group} * p.n + n) * p.w.row_bytes + first;
    }
  }

  // The offset of a lane's chunk of a column in a slot.  Chunks are swizzled so that neither words
  // nor pairs of words of eight columns collide.
  __device__ int chunk_place(int chunk, int i) const {
    const int swizzle = (quad >> 1 & 1) << 1 | quad >> 2;
    return (quad + 8 * i) * kStepBytes + ((chunk ^ swizzle) << 4);
  }

  // Requests the next step of the ring; where there are no codes it becomes zeros.
  __device__ __forceinline__ void request(int to) {
    if (ahead_steps > 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ptx::copy_async_16_ahead(shared.codes[to][warp] + chunk_place(part, i),
                                 ahead_from + 8 * i * p.w.row_bytes,
                                 ahead_bytes > 0 && ahead_columns > 8 * i);
      }
      const int step_bytes = kStepBytes << p.team_shift;
      ahead_from += step_bytes;
      ahead_bytes -= step_bytes;
      if (--ahead_steps == 0) {
        start_ahead(ahead_item + static_cast<int>(gridDim.x));
      }
    }
    ptx::copy_async_commit();
  }

  // The functions that follow bring rows.

  // Requests the rows of a pass; called by all warps.
  __device__ __forceinline__ void request_rows(const Place& place, int pass) const {
    const int rows = place.rows;
    const int columns = min(kPass, p.k - pass * kPass);
    const auto bytes = static_cast<uint32_t>(columns) * uint32_t{sizeof(BFloat16)};
    const auto* from =
        reinterpret_cast<const BFloat16*>(p.a.values) + (place.row + warp) * p.k + pass * kPass;
    uint8_t* to = shared.raw + warp * kRawStride;
    if (ptx::elect_one()) {
      if (warp == 0) {
        ptx::mbarrier_arrive_expect_tx(&shared.raw_arrived, bytes * static_cast<uint32_t>(rows));
      }
#pragma unroll 1
      for (int row = warp; row < rows; row += kWarps) {
        ptx::bulk_load(to, from, bytes, &shared.raw_arrived);
        from += kWarps * p.k;
        to += kWarps * kRawStride;
      }
    }
    __syncwarp();
  }

  // Brings requested rows into their order, with zeros behind them.  Passes alternate between both
  // values of `to`, and so do the phases of raw_arrived.  A thread has a slab of a row.
  __device__ __forceinline__ void spread_rows(const Place& place, int pass, int to) {
    ptx::mbarrier_wait_parity(&shared.raw_arrived, static_cast<uint32_t>(to));
    const int row = warp / 2 * 8 + lane % 8;
    const int slab = warp % 2 * 4 + lane / 8;
    if (row < kRows) {
      uint4 eights[4] = {};
      if (row < place.rows && pass * kPass + slab * kSlab < p.k) {
        const uint8_t* raw = shared.raw + row * kRawStride + slab * kSlab * int{sizeof(BFloat16)};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          eights[i] = in_order_of<kCode>(reinterpret_cast<const uint4*>(raw)[i]);
        }
      }
      uint8_t* tile = rows(to) + slab / 2 * kTileBytes + row * 128;
      const auto store = [&](int i, const uint4& pairs) {
        *reinterpret_cast<uint4*>(tile + (((slab % 2 * 4 + i) ^ (row % 8)) << 4)) = pairs;
      };
      store(0, make_uint4(eights[0].x, eights[1].x, eights[2].x, eights[3].x));
      store(1, make_uint4(eights[0].y, eights[1].y, eights[2].y, eights[3].y));
      store(2, make_uint4(eights[0].z, eights[1].z, eights[2].z, eights[3].z));
      store(3, make_uint4(eights[0].w, eights[1].w, eights[2].w, eights[3].w));
    }
    ptx::fence_proxy_async_shared();  // for what wgmma reads, and what copies overwrite
  }
  __device__ uint8_t* rows(int which) const {
    return which == 0 ? shared.rows0 : shared.rows1;
  }

  // The functions that follow bring scales.  A quad shares its columns, and each of its lanes
  // fetches the scales of one slab of a step.

  __device__ __forceinline__ void start_scales(const Place& place) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      first_scale[i] = static_cast<int>(scale_row(p.w, place.group, column_of(place, i)));
    }
  }
  __device__ __forceinline__ void fetch_scales(int step) {
    const int k = ((step << p.team_shift) + team) * kStepSlabs * kSlab + part % kStepSlabs * kSlab;
    const int at = min(k >> p.scale_shift, p.w.scale_cols - 1);
    const auto* from = static_cast<const Scale*>(p.w.scale);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int index = first_scale[i] + at;
      next_scale[i] = from[std::is_same_v<Scale, uint16_t> ? index / 2 : index];
      if (kHasZeros && p.w.zero_point != nullptr) {
        next_zero[i] = p.w.zero_point[index];
      }
    }
  }
  __device__ __forceinline__ static uint32_t zeros(float zero_point) {
    return both_halves(kCode == Code::kU4 ? 128.0f + zero_point : zero_point);
  }
  // Makes the fetched scales those of this step.  Returns whether they are large.
  __device__ __forceinline__ bool take_scales() {
    bool is_large = false;
    if constexpr (kMayBeLarge) {
      is_large = __any_sync(kAll, max(next_scale[0], next_scale[1]) > kLargestE8m0);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kMayBeLarge) {
        by[i] = is_large ? unfolded_e8m0(next_scale[i]) : folded_e8m0(next_scale[i]);
      } else if constexpr (kFolds) {
        by[i] = folded_e4m3(next_scale[i]);
      } else {
        scale[i] = scale_value(next_scale[i]);
      }
      if (kHasZeros && p.w.zero_point != nullptr) {
        by[i] = zeros(static_cast<float>(next_zero[i]) - p.w.zero_point_offset);
      }
    }
    return is_large;
  }
  __device__ __forceinline__ uint32_t by_of(int slab, int i) const {
    uint32_t out = by[i];
    if constexpr (kFolds || kHasZeros) {
      out = __shfl_sync(kAll, out, lane - part + slab);
    }
    if constexpr (std::is_same_v<Scale, uint16_t>) {  // two scales of 16 elements of k each
      out = __byte_perm(out, 0, part < 2 ? 0x1010 : 0x3232);
    }
    return out;
  }

  // The functions that follow multiply.

  // Decodes a slab's elements as wgmma takes them, for two products.
  template <bool kIsLarge>
  __device__ __forceinline__ void decode(const uint32_t (&words)[2][kStepSlabs][kWords],
                                         int slab,
                                         uint32_t (&elements)[2][4]) const {
    uint32_t pairs[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      decode_pairs<kCode, kIsLarge>(words[i][slab], by_of(slab, i), pairs[i]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        elements[half][j] = pairs[j % 2][2 * half + j / 2];
      }
    }
  }

  // The branch is here and not around wgmma, which all warps of a warpgroup must take together.
  __device__ __forceinline__ void decode_batch(const uint32_t (&words)[2][kStepSlabs][kWords],
                                               int first,
                                               bool is_large,
                                               uint32_t (&elements)[kBatch][2][4]) const {
    if (kMayBeLarge && is_large) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        decode<true>(words, first + i, elements[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        decode<false>(words, first + i, elements[i]);
      }
    }
  }

  // Adds sums * the slab's scales to totals.
  __device__ __forceinline__ void add_scaled(int slab, Sums& sums, Sums& totals) const {
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(sums);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float by = __shfl_sync(kAll, scale[i], lane - part + slab);
#pragma unroll
      for (int j = i * 2; j < kRows / 2; j += 4) {
        totals[j] = __fmaf_rn(sums[j], by, totals[j]);
        totals[j + 1] = __fmaf_rn(sums[j + 1], by, totals[j + 1]);
      }
    }
  }

  // Multiplies one step.  `rows`: the rows of its first slab, as wgmma_descriptor() takes them.
  __device__ __forceinline__ void multiply_step(
      uint32_t rows, bool is_large, bool& accumulates, Sums& sums, Sums& totals) {
    ptx::copy_async_wait<kStages - 2>();
    __syncwarp();
    uint32_t words[2][kStepSlabs][kWords];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int slab = 0; slab < kStepSlabs; ++slab) {
        const uint8_t* codes = shared.codes[slot][warp];
        if constexpr (kWords == 1) {
          words[i][slab][0] =
              *reinterpret_cast<const uint32_t*>(codes + chunk_place(slab, i) + part * 4);
        } else {
          const auto pair = *reinterpret_cast<const uint2*>(
              codes + chunk_place(2 * slab + part / 2, i) + part % 2 * 8);
          words[i][slab][0] = pair.x;
          words[i][slab][1] = pair.y;
        }
      }
    }
    request(slot == 0 ? kStages - 1 : slot - 1);  // into the slot that the whole warp has read
    slot = slot + 1 == kStages ? 0 : slot + 1;

    uint32_t elements[2][kBatch][2][4];
    decode_batch(words, 0, is_large, elements[0]);
#pragma unroll
    for (int first = 0; first < kStepSlabs; first += kBatch) {
      ptx::wgmma_pin(sums);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int slab = first + i;
        const uint32_t low = rows + slab / 2 * (kTileBytes / 16) + slab % 2 * 4;
        const auto& own = elements[first / kBatch % 2][i];
        ptx::Wgmma<kRows>::bf16(sums, own[0], ptx::wgmma_descriptor(low), accumulates);
        ptx::Wgmma<kRows>::bf16(sums, own[1], ptx::wgmma_descriptor(low + 2), true);
        accumulates = true;
      }
      ptx::wgmma_commit();
      if constexpr (!kFolds) {
        static_assert(kBatch == 1);
        if (((first + 1) & p.scaled_mask) == 0) {
          add_scaled(first, sums, totals);
          accumulates = false;
        }
      }
      ptx::wgmma_wait<1>();
      if (first + kBatch < kStepSlabs) {
        decode_batch(words, first + kBatch, is_large, elements[(first / kBatch + 1) % 2]);
      }
    }
  }

  __device__ __forceinline__ void run_item(int item_parity, bool has_next) {
    const Place& place = shared.places[item_parity];
    const Place& next = shared.places[item_parity ^ 1];
    Sums sums;
    Sums totals = {};
    bool accumulates = false;
    const int pass_steps = kPassSteps >> p.team_shift;
    int step = 0;
#pragma unroll 1
    for (int pass = 0; pass < p.passes; ++pass) {
      const bool is_last = pass + 1 == p.passes;
      const bool has_rows = !is_last || has_next;
      const Place& ahead = is_last ? next : place;
      const int ahead_pass = is_last ? 0 : pass + 1;
      const uint32_t live_rows = ptx::wgmma_descriptor_low(ptx::shared_address(rows(live)));
      if (has_rows) {
        request_rows(ahead, ahead_pass);
      }
#pragma unroll 1
      for (int i = 0; i < pass_steps; ++i) {
        const bool is_large = take_scales();
        ++step;
        if (step < num_steps()) {
          fetch_scales(step);
        } else if (has_next) {
          start_scales(next);
          fetch_scales(0);
        }
        const auto slab = static_cast<uint32_t>(((i << p.team_shift) + team) * kStepSlabs);
        const uint32_t at = live_rows + slab / 2 * (kTileBytes / 16);
        multiply_step(at, is_large, accumulates, sums, totals);
      }
      ptx::wgmma_wait<0>();
      ptx::wgmma_pin(sums);
      if (has_rows) {
        spread_rows(ahead, ahead_pass, live ^ 1);
      }
      live ^= 1;
      __syncthreads();
    }
    if constexpr (!kFolds) {
      if (p.scaled_mask == kScaledAtEnd) {
        add_scaled(0, sums, totals);
      }
      store(place, totals);
    } else {
      store(place, sums);
    }
  }

  __device__ __forceinline__ float column_factor(const Place& place, int n) const {
    float factor = 1.0f;
    if constexpr (kFolds) {
      factor = kColumnFactor;
      if (std::is_same_v<Scale, uint16_t>) {
        factor *= global_factor(p.w, place.group, n);
      }
    }
    return factor;
  }

  __device__ __forceinline__ void store(Place place, const Sums& sums) {
    auto* all = reinterpret_cast<float*>(live == 0 ? shared.raw : shared.rows0);
    const int stride = kSumStride >> p.team_shift;
    float* own = all + team * kMostRows * stride + warp_column + quad;
#pragma unroll
    for (int j = 0; j < kRows / 2; ++j) {
      own[(j / 4 * 8 + part * 2 + j % 2) * stride + j / 2 % 2 * 8] = sums[j];
    }
    __syncthreads();
    const int pairs = (kColumns >> p.team_shift) / 2;
    const int column = static_cast<int>(threadIdx.x) % pairs * 2;
    const int n = place.column + column;
    if (n < p.n) {
      const bool has_second = n + 1 < p.n;
      const float2 factor = {column_factor(place, n),
                             has_second ? column_factor(place, n + 1) : 0.0f};
      float2 bias = {0.0f, 0.0f};
      if (p.bias != nullptr) {
        const float* from = p.bias + int64_t{place.group} * p.n + n;
        bias = {from[0], has_second ? from[1] : 0.0f};
      }
      for (int row = static_cast<int>(threadIdx.x) / pairs; row < place.rows;
           row += kThreads / pairs) {
        const float* from = all + row * stride + column;
        float2 v = *reinterpret_cast<const float2*>(from);
        if (p.team_shift > 0) {
          const float2 other = *reinterpret_cast<const float2*>(from + kMostRows * stride);
          v = {v.x + other.x, v.y + other.y};
        }
        const int64_t out_row = place.row + row;
        const float of_row = row_scale(p.a, out_row, place.group, 0);
        const float by_row = p.a.divides ? 1.0f / of_row : of_row;
        v = {v.x * factor.x * by_row + bias.x, v.y * factor.y * by_row + bias.y};
        const int64_t at = out_row * p.n + n;
        if (p.n % 2 == 0) {
          store_pair(p.out, p.out_dtype, at, v);
        } else {
          quant::device::store_element(p.out, p.out_dtype, at, v.x);
          if (has_second) {
            quant::device::store_element(p.out, p.out_dtype, at + 1, v.y);
          }
        }
      }
    }
    ptx::fence_proxy_async_shared();  // before copies into `raw`
    __syncthreads();
  }

  // Notes for all threads where an item is; visible after the next barrier.
  __device__ __forceinline__ void note_place(int item, int which) {
    if (threadIdx.x == 0 && item < num_items) {
      shared.places[which] = find(item);
    }
  }

  __device__ void run() {
    int item = static_cast<int>(blockIdx.x);
    if (item >= num_items) {
      return;
    }
    start_ahead(item);
    for (int i = 0; i < kStages - 1; ++i) {
      request(i);
    }
    const int step = static_cast<int>(gridDim.x);
    int parity = 0;
    note_place(item, 0);
    note_place(item + step, 1);
    __syncthreads();
    start_scales(shared.places[0]);
    fetch_scales(0);
    request_rows(shared.places[0], 0);
    spread_rows(shared.places[0], 0, live);
    __syncthreads();
    for (; item < num_items; item += step) {
      const bool has_next = item + step < num_items;
      run_item(parity, has_next);
      note_place(item + 2 * step, parity);
      __syncthreads();
      parity ^= 1;
    }
  }
};

}  // namespace moebius::cuda::few_rows
