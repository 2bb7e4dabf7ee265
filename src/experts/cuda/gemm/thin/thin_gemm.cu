// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A grouped GEMM of bf16 for few rows per group, which runs at the speed at which weights are read.
// On the tensor cores 16 columns of the result are the operand of 16 rows, and eight rows of
// activations are its columns.
//
// Item: a tile of up to eight rows of a group times two boxes of 16 columns, over all of K.
// Where the kernel activates, one box is of gate and the other has the columns of up that belong to
// them, so that a thread has both.
// Grid: persistent blocks.  Every warp computes items of its own and waits for no other warp.
// Neighbouring warps begin with neighbouring items, which mostly share rows: those come through L1.
// Stages: each warp has a ring of its own, which it fills itself, weights by TMA, and on from item
// to item, so that reading never pauses.  Why not by threads: copies of 64 bytes of a column by
// cp.async read 2 TB/s, boxes of TMA 3.8.  Two blocks fit an SM, so the next GEMM of a call has its
// first weights when this one ends.
// k: a sum over k may take any order that both operands share.  So a lane multiplies eight
// neighbours of k, as they lie in memory: of each 64, lane l of a quad has the 16 from 16 l on.
#include <algorithm>

#include "core/ceil_div.h"
#include "core/cuda/device.h"
#include "core/cuda/fetch_ahead.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/mma.cuh"
#include "core/cuda/ptx.cuh"
#include "experts/cuda/activation/activation.cuh"
#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/gemm/tensor_map.h"
#include "experts/cuda/gemm/thin/thin_items.cuh"
#include "experts/cuda/gemm/tile_walk.cuh"
#include "experts/cuda/gemm/weight_values.h"

namespace moebius::cuda {

namespace thin {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kEight = 8;        // rows or columns side by side in a product
constexpr int kBoxColumns = 16;  // two boxes per item
constexpr int kItemColumns = 2 * kBoxColumns;
constexpr int kStep = 64;        // of K, in a stage
constexpr int kLineBytes = 128;  // of a column or row in a stage, swizzled as TMA does it
constexpr int kChunk = 16;       // bytes that move at once
constexpr int kBoxBytes = kBoxColumns * kLineBytes;
constexpr int kStageBytes = 2 * kBoxBytes + kEight * kLineBytes;
constexpr int kStages = 5;
constexpr int kRingBytes = kStages * kStageBytes;
static_assert(kStep * int{sizeof(BFloat16)} == kLineBytes && kThinRows == kEight);
static_assert(kStep * kStages == kThinDepth);

struct Args {
  CUtensorMap w;  // [G N, K], boxes of kBoxColumns x kStep
  const BFloat16* a;
  const int32_t* index;  // row r is a[index[r]]; nullptr: a[r]
  const float* bias;     // nullptr: none
  void* out;
  bool is_f32;           // out is, else bf16
  bool activates;        // out has N / 2 columns
  bool lets_next_begin;  // see core/cuda/launch.cuh
  int* next_item;        // as in GroupedGemm; nullptr: warps take items by turns
  FetchAhead fetch;      // see ExpertGemm
  bool evicts_weights;   // see GemmPlan
  RowGroups rows;
  int n;
  int k;

  __device__ __forceinline__ int across() const { return n / kItemColumns; }
  // From the first column of an item's first box to that of its second.
  __device__ __forceinline__ int to_second() const { return activates ? n / 2 : kBoxColumns; }
  __device__ __forceinline__ int first_column(int item) const {
    return item % across() * (activates ? kBoxColumns : kItemColumns);
  }
};

struct Shared {
  uint64_t full[kWarps][kStages];  // weights have arrived
  Groups groups;
};

// Two blocks fit on an SM, each of which takes 1 KiB more.
constexpr int kSharedOfSm = 228 * 1024;
static_assert(2 * (kWarps * kRingBytes + ceil_div(int{sizeof(Shared)}, 1024) * 1024 + 1024) <=
              kSharedOfSm);

struct Place : Tile {
  int column;  // first, of the first box
};

class Worker {
 public:
  __device__ __forceinline__ Worker(const Args& args, Shared& shared, const uint8_t* stages)
      : p_(args),
        groups_(shared.groups),
        ring_(ptx::shared_address(stages) + warp_ * kRingBytes),
        full_(ptx::shared_address(shared.full[warp_])),
        items_(args.next_item, shared.groups.first_tile[args.rows.num_groups] * args.across()) {}

  __device__ __forceinline__ void run() {
    const bool has_items = begin_items(items_.exists(), p_.lets_next_begin, [&] {
      find();
      for (int stage = 0; stage < kStages; ++stage) {
        request_weights(stage);
      }
    });
    if (!has_items) {
      return;
    }
    find_rows();
    for (int stage = 0; stage < kStages; ++stage) {
      request_rows(stage);
      ptx::copy_async_commit();
    }
    const int steps = p_.k / kStep;
    int stage = 0;
    uint32_t parity = 0;
    while (items_.exists()) {
      const Place place = place_;
      Sums sums = {};
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        ptx::copy_async_wait<kStages - 1>();
        __syncwarp();  // the rows that other lanes have copied are there, too
        ptx::mbarrier_wait_parity(full_ + stage * uint32_t{sizeof(uint64_t)}, parity);
        multiply(stage, sums);
        __syncwarp();                   // the stage has been read
        if (step == steps - kStages) {  // all of this item has been requested
          items_.draw();
          items_.advance();
          if (items_.exists()) {
            find();
            find_rows();
          }
        }
        if (items_.exists()) {
          request_weights(stage);
          request_rows(stage);
        }
        ptx::copy_async_commit();
        if (++stage == kStages) {
          stage = 0;
          parity ^= 1;
        }
      }
      store(place, sums);
    }
    items_.finish();
  }

 private:
  // Of both boxes; two sums of every element, which take turns along k, so that products do not
  // wait for each other.
  using Sums = float[2][2][4];
  static constexpr int kCopies = kEight * kLineBytes / kChunk / kWarp;  // of a lane
  static constexpr int kLinesAtOnce = kWarp * kChunk / kLineBytes;

  // Finds the columns and rows of the item that is requested next.
  __device__ __forceinline__ void find() {
    const int item = items_.item();
    place_ = {find_tile<kThinRows>(groups_, p_.rows.num_groups, item / p_.across()),
              p_.first_column(item)};
    k_ = 0;
  }
  __device__ __forceinline__ void find_rows() {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int at = i * kLinesAtOnce + lane_ / kEight;
      rows_[i] = nullptr;
      if (at < place_.rows) {
        const int row = place_.row + at;
        rows_[i] = p_.a + int64_t{p_.index != nullptr ? p_.index[row] : row} * p_.k +
                   lane_ % kEight * kVector;
      }
    }
  }
  __device__ __forceinline__ uint32_t stage_at(int stage) const {
    return ring_ + static_cast<uint32_t>(stage * kStageBytes);
  }
  __device__ __forceinline__ void request_weights(int stage) {
    if (ptx::elect_one()) {
      const uint32_t full = full_ + stage * uint32_t{sizeof(uint64_t)};
      const int column = place_.group * p_.n + place_.column;
      ptx::mbarrier_arrive_expect_tx(full, 2 * kBoxBytes);
      const uint32_t first = stage_at(stage);
      const uint32_t second = first + kBoxBytes;
      if (p_.evicts_weights) {
        ptx::tensor_load(first, &p_.w, k_, column, full, evict_first_);
        ptx::tensor_load(second, &p_.w, k_, column + p_.to_second(), full, evict_first_);
      } else {
        ptx::tensor_load(first, &p_.w, k_, column, full);
        ptx::tensor_load(second, &p_.w, k_, column + p_.to_second(), full);
      }
    }
    k_ += kStep;
  }
  // Rows that do not exist keep what was there, since nothing uses their sums.
  __device__ __forceinline__ void request_rows(int stage) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (rows_[i] != nullptr) {
        const int line = i * kLinesAtOnce + lane_ / kEight;
        const int chunk = (lane_ ^ line) % kEight;
        ptx::copy_async_16_by_l1(
            stage_at(stage) +
                static_cast<uint32_t>(2 * kBoxBytes + line * kLineBytes + chunk * kChunk),
            rows_[i]);
        rows_[i] += kStep;
      }
    }
  }
  __device__ __forceinline__ void multiply(int stage, Sums& sums) const {
    constexpr uint32_t kHalf = kEight * kLineBytes;  // eight columns or rows
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      // The lane's chunk of every line, which are all swizzled alike.
      const uint32_t from =
          stage_at(stage) +
          static_cast<uint32_t>(quad_ * kLineBytes + ((2 * part_ + part) ^ quad_) * kChunk);
      uint32_t low[2][4];
      uint32_t high[2][4];
#pragma unroll
      for (int box = 0; box < 2; ++box) {
        ptx::ld_shared(from + box * kBoxBytes, low[box]);
        ptx::ld_shared(from + box * kBoxBytes + kHalf, high[box]);
      }
      uint32_t row[4];
      ptx::ld_shared(from + 2 * kBoxBytes, row);
#pragma unroll
      for (int box = 0; box < 2; ++box) {
        const uint32_t first[4] = {low[box][0], high[box][0], low[box][1], high[box][1]};
        const uint32_t second[4] = {low[box][2], high[box][2], low[box][3], high[box][3]};
        ptx::mma_bf16(sums[0][box], first, row[0], row[1]);
        ptx::mma_bf16(sums[1][box], second, row[2], row[3]);
      }
    }
  }

  __device__ __forceinline__ void store(const Place& place, const Sums& sums) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // eight columns of either box
      const int column = place.column + half * kEight;
      float bias[2] = {};
      if (p_.bias != nullptr) {
        const float* of_lane = p_.bias + int64_t{place.group} * p_.n + column + quad_;
        bias[0] = of_lane[0];
        bias[1] = of_lane[p_.to_second()];
      }
      uint32_t pairs[2];  // of both boxes: the lane's column in two rows
#pragma unroll
      for (int box = 0; box < 2; ++box) {
        float own[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          own[j] = sums[0][box][2 * half + j] + sums[1][box][2 * half + j] + bias[box];
          const int row = 2 * part_ + j;
          if (p_.is_f32 && row < place.rows) {
            static_cast<float*>(
                p_.out)[int64_t{place.row + row} * p_.n + column + box * kBoxColumns + quad_] =
                own[j];
          }
        }
        pairs[box] = narrow_pair(BFloat16{}, own[0], own[1]);
      }
      if (p_.activates) {
        store_pair(place, column, silu_pair<BFloat16>(pairs[0], pairs[1]));
      } else if (!p_.is_f32) {
        store_pair(place, column, pairs[0]);
        store_pair(place, column + kBoxColumns, pairs[1]);
      }
    }
  }
  __device__ __forceinline__ void store_pair(const Place& place, int column, uint32_t pair) const {
    const int width = p_.activates ? p_.n / 2 : p_.n;
    store_eight(place, static_cast<uint16_t*>(p_.out) + column, width, pair);
  }

  const Args& p_;
  const Groups& groups_;
  int warp_ = static_cast<int>(threadIdx.x) / kWarp;
  int lane_ = static_cast<int>(threadIdx.x) % kWarp;
  int quad_ = lane_ / 4;
  int part_ = lane_ % 4;
  uint32_t ring_;
  uint32_t full_;
  uint64_t evict_first_ = ptx::evict_first();
  Items<kWarps> items_;

  // Of what is requested next.
  Place place_;
  int k_;
  const BFloat16* rows_[kCopies];  // nullptr: no such row
};

__global__ void __launch_bounds__(kThreads, 2) thin_gemm_kernel(const __grid_constant__ Args args) {
  __shared__ Shared shared;
  extern __shared__ __align__(1024) uint8_t stages[];
  if (threadIdx.x == 0) {
    init_barriers(&shared.full[0][0], kWarps * kStages, &args.w);
  }
  if (!args.rows.settled) {
    if (args.fetch.units > 0 && threadIdx.x == kThreads - 1) {
      fetch_at_a_pace(args.fetch);
    }
    __syncwarp();
    ptx::await_kernel_before();
  }
  find_tiles<kThreads, kThinRows>(args.rows, shared.groups);
  Worker(args, shared, stages).run();
}

}  // namespace
}  // namespace thin

CUtensorMap thin_map(const Tensor& weights, Lines lines) {
  using namespace thin;
  const int64_t k = weights.dim(2);
  return make_tensor_map(weights.raw(), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                         CU_TENSOR_MAP_SWIZZLE_128B,
                         {{k, 1, kStep}, {weights.dim(0) * weights.dim(1), k, kBoxColumns}}, lines);
}

void thin_gemm(const ExpertGemm& gemm, const GemmPlan& plan, const Stream& on) {
  using namespace thin;
  const int index = on.device().index;
  const DeviceGuard guard(index);
  const GemmArgs common = gemm_args(gemm);
  const Tensor& w = gemm.w->values;
  Args args{};
  args.fetch = gemm.fetch;
  args.evicts_weights = plan.evicts_weights;
  args.w = gemm.w->maps != nullptr ? gemm.w->maps->of(plan.evicts_weights).thin
                                   : thin_map(w, lines_of(plan.evicts_weights));
  args.a = gemm.a.values.data<BFloat16>();
  args.index = gemm.a.index ? gemm.a.index.data<int32_t>() : nullptr;
  args.bias = common.bias;
  args.out = common.out;
  args.is_f32 = common.out_dtype == DType::kF32;
  args.activates = plan.activates;
  args.lets_next_begin = gemm.max_sms == 0;
  args.next_item = gemm.next_item ? gemm.next_item.data<int>() : nullptr;
  args.rows = common.rows;
  args.n = common.n;
  args.k = common.k;
  const int64_t items = most_tiles(gemm.rows, gemm.out.dim(0), kThinRows) * (args.n / kItemColumns);
  const auto grid = static_cast<unsigned>(std::min(items, blocks_of(gemm, /*per_sm=*/1, index)));
  constexpr int kBytes = kWarps * kRingBytes;
  allow_shared_bytes(index, reinterpret_cast<const void*>(thin_gemm_kernel), kBytes);
  launch_early("thin_gemm_kernel", thin_gemm_kernel, grid, kThreads, kBytes,
               as_stream(on.native_handle()), args);
}

}  // namespace moebius::cuda
