// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A grouped GEMM of weights in codes of 4 bits for the fewest rows per group, with no kernel ahead
// of it that orders rows.  On the tensor cores 16 columns of the result, decoded in registers, are
// the operand of 16 rows, and eight rows of activations are its columns.
//
// Item: a tile of up to eight rows of a group times two eights of columns, over all of K.  They are
// neighbours, or, where the kernel activates, eight columns of gate and those of up that belong to
// them, so that a thread has both.
// Grid: persistent blocks, two per SM where there are items for all of their warps.  Every warp
// computes items of its own and waits for no other warp.
// Stages: each warp has a ring of its own, which it fills itself by TMA, and on from item to item.
// It is short, since the first stage of the last warp comes after all that others have asked for.
// Scales and rows are loaded by lanes; an item's scales are fetched to L2 when it is requested.
// k: a sum over k may take any order that both operands share.  A stage has 256 codes of a column;
// of each half, lane l of a quad multiplies the 32 neighbours from 32 l on.
#include <algorithm>
#include <cassert>
#include <type_traits>

#include "core/ceil_div.h"
#include "core/cuda/device.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/mma.cuh"
#include "core/cuda/ptx.cuh"
#include "experts/cuda/activation/activation.cuh"
#include "experts/cuda/gemm/dequant/few_rows_decode.cuh"
#include "experts/cuda/gemm/dequant/few_rows_scales.cuh"
#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/gemm/tensor_map.h"
#include "experts/cuda/gemm/thin/thin_items.cuh"
#include "experts/cuda/gemm/tile_walk.cuh"
#include "experts/cuda/gemm/weight_values.cuh"

namespace moebius::cuda {

namespace thin {
namespace {

using few_rows::Changes;
using few_rows::Decoding;
using quant::Code;

constexpr int kWarps = 8;
constexpr int kBlocks = 2;  // on an SM
constexpr int kThreads = kWarps * kWarp;
constexpr int kEight = 8;  // rows or columns side by side in a product
constexpr int kItemColumns = 2 * kEight;
constexpr int kLineBytes = 128;  // of a column in a stage, swizzled as TMA does it
constexpr int kChunk = 16;       // bytes that a lane loads at once
constexpr int kHalves = 2;       // of a line
constexpr int kHalf = 128;       // codes in one
constexpr int kLane = 32;        // codes of a lane in a half
constexpr int kStep = kHalves * kHalf;
constexpr int kEightBytes = kEight * kLineBytes;
constexpr int kStageBytes = 2 * kEightBytes;
constexpr int kStages = 2;
constexpr int kRingBytes = kStages * kStageBytes;
static_assert(kThinRows == kEight);
static_assert((kStages - 1) * kStep == kThinCodeDepth);

struct Args : GemmArgs {
  CUtensorMap codes;     // boxes of both eights x kLineBytes
  const int32_t* index;  // row r is a[index[r]]; nullptr: a[r]
  bool activates;        // out has N / 2 columns
  bool lets_next_begin;  // see core/cuda/launch.cuh
  int* next_item;
  int scale_shift;  // 1 << scale_shift elements of k share a scale

  __device__ __forceinline__ int across() const { return n / kItemColumns; }
  // From an item's first eight columns to the others.
  __device__ __forceinline__ int to_second() const { return activates ? n / 2 : kEight; }
};

// A lane multiplies by these where K ends before its elements, since codes there are zeros, which
// int4 does not decode to 0.
__device__ const uint4 kNoElements[kLane / kEight] = {};

struct Shared {
  uint64_t full[kWarps][kStages];  // codes have arrived
  Groups groups;
};

struct Place {
  Tile tile;
  int column;  // first, of the first eight
};

// D: a Decoding of codes of 4 bits.
template <typename D>
class Worker {
 public:
  __device__ __forceinline__ Worker(const Args& args, Shared& shared, const uint8_t* stages)
      : p_(args),
        groups_(shared.groups),
        ring_(ptx::shared_address(stages) + warp() * kRingBytes),
        full_(ptx::shared_address(shared.full[warp()])),
        items_(args.next_item, shared.groups.first_tile[args.rows.num_groups] * args.across()) {}

  __device__ __forceinline__ void run() {
    const bool has_items = begin_items(items_.exists(), p_.lets_next_begin, [&] {
      find();
      for (int stage = 0; stage < kStages; ++stage) {
        request(stage);
      }
    });
    if (!has_items) {
      return;
    }
    const int steps = (p_.k + kStep - 1) / kStep;
    int stage = 0;
    uint32_t parity = 0;
    while (items_.exists()) {
      const Place place = place_;
      start(place);
      Sums sums = {};
      Sums totals = {};
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        ptx::mbarrier_wait_parity(full_ + stage * uint32_t{sizeof(uint64_t)}, parity);
        multiply(stage, sums, totals);
        __syncwarp();                   // the stage has been read
        if (step == steps - kStages) {  // all of this item has been requested
          items_.advance();
          if (items_.exists()) {
            find();
          }
        }
        if (items_.exists()) {
          request(stage);
        }
        if (++stage == kStages) {
          stage = 0;
          parity ^= 1;
        }
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sums[j] += totals[j];
      }
      finish(place, sums);
    }
    items_.finish();
  }

 private:
  using T = typename D::Element;
  // A lane has the sums of rows 2 part and 2 part + 1, in its column of the first eight and then in
  // that of the other.
  using Sums = float[4];
  // For a half of a stage a lane has one scale, or two of 16 neighbours each.
  using Scale = typename D::Scale;
  using ScaleWord = std::conditional_t<sizeof(Scale) == 4,
                                       uint32_t,
                                       std::conditional_t<sizeof(Scale) == 2, uint16_t, uint8_t>>;
  static constexpr int kScalesOfWord = D::kIsPair ? 2 : 1;

  __device__ __forceinline__ static int warp() {
    return static_cast<int>(threadIdx.x) / kWarp;
  }
  __device__ __forceinline__ static int lane() {
    return static_cast<int>(threadIdx.x) % kWarp;
  }
  // The lane's column in an eight, and its row.
  __device__ __forceinline__ static int quad() {
    return lane() / 4;
  }
  __device__ __forceinline__ static int part() {
    return lane() % 4;
  }

  // Finds the item that is requested next, and fetches its scales to L2.
  __device__ __forceinline__ void find() {
    const int item = items_.item();
    place_.tile = find_tile(groups_, p_.rows.num_groups, item / p_.across());
    place_.column = item % p_.across() * (p_.activates ? kEight : kItemColumns);
    next_byte_ = 0;
    const int bytes = p_.w.scale_cols * int{sizeof(Scale)} / kScalesOfWord;
    if (part() * kLineBytes < bytes) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ptx::prefetch(scales_of(place_, i) + part() * kLineBytes);
      }
    }
  }
  __device__ __forceinline__ void request(int stage) {
    if (ptx::elect_one()) {
      const uint32_t full = full_ + stage * uint32_t{sizeof(uint64_t)};
      ptx::mbarrier_arrive_expect_tx(full, kStageBytes);
      const int group = place_.tile.group;
      const int at[5] = {next_byte_, p_.activates ? place_.column : 0, 0,
                         p_.activates ? group : (group * p_.n + place_.column) / kItemColumns, 0};
      ptx::tensor_load(ring_ + static_cast<uint32_t>(stage * kStageBytes), &p_.codes, at, full,
                       evict_first_);
    }
    next_byte_ += kLineBytes;
  }

  __device__ __forceinline__ int column_of(const Place& place, int i) const {
    return place.column + quad() + (i == 0 ? 0 : p_.to_second());
  }
  __device__ __forceinline__ const uint8_t* scales_of(const Place& place, int i) const {
    return static_cast<const uint8_t*>(p_.w.scale) +
           scale_row(p_.w, place.tile.group, column_of(place, i)) *
               int64_t{sizeof(Scale) / kScalesOfWord};
  }

  // Begins an item: finds the lane's row and scales.
  __device__ __forceinline__ void start(const Place& place) {
    k_ = part() * kLane;
    const int row = place.tile.row + min(quad(), place.tile.rows - 1);
    row_ = reinterpret_cast<const T*>(p_.a.values) +
           int64_t{p_.index != nullptr ? p_.index[row] : row} * p_.k + k_;
    scales_[0] = scales_of(place, 0);
    scales_[1] = scales_of(place, 1);
    load_scales();
  }
  // Loads the scales of the stage that begins with k_ - part() * kLane.
  __device__ __forceinline__ void load_scales() {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int k = min(k_ + half * kHalf, p_.k - kLane);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        words_[half][i] =
            reinterpret_cast<const ScaleWord*>(scales_[i])[(k >> p_.scale_shift) / kScalesOfWord];
      }
    }
  }

  __device__ __forceinline__ void multiply(int stage, Sums& sums, Sums& totals) {
    const uint32_t from = ring_ + static_cast<uint32_t>(stage * kStageBytes + quad() * kLineBytes);
    uint32_t words[kHalves][2];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      words[half][0] = words_[half][0];
      words[half][1] = words_[half][1];
    }
    const T* row = row_;
    const int left = p_.k - k_;  // of the row, from the lane's first k on
    k_ += kStep;
    row_ += kStep;
    load_scales();
    bool is_large = false;
    if constexpr (D::kMayBeLarge) {
      const uint32_t largest = max(max(words[0][0], words[0][1]), max(words[1][0], words[1][1]));
      is_large = __any_sync(0xffffffffu, largest >= few_rows::kLargestE8m0);
    }
    if (is_large) {
      multiply_stage<true>(from, words, row, left, sums, totals);
    } else {
      multiply_stage<false>(from, words, row, left, sums, totals);
    }
  }

  template <bool kIsSpecial>
  __device__ __forceinline__ void multiply_stage(uint32_t from,
                                                 const uint32_t (&words)[kHalves][2],
                                                 const T* row,
                                                 int left,
                                                 Sums& sums,
                                                 Sums& totals) const {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int chunk = (part() + 4 * half) ^ quad();
      uint32_t codes[2][4];
      ptx::ld_shared(from + chunk * kChunk, codes[0]);
      ptx::ld_shared(from + kEightBytes + chunk * kChunk, codes[1]);
      // Two sums take turns, so that products do not wait for each other.
      Sums other = {};
      const auto* own =
          left > half * kHalf ? reinterpret_cast<const uint4*>(row + half * kHalf) : kNoElements;
      multiply_half<kIsSpecial>(codes, words[half], own, sums, D::kFolds ? totals : other);
      if constexpr (!D::kFolds) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          totals[j] = __fmaf_rn(sums[j] + other[j],
                                few_rows::scale_value<Scale>(words[half][j / 2]), totals[j]);
          sums[j] = 0.0f;
        }
      }
    }
  }

  template <bool kIsSpecial>
  __device__ __forceinline__ void multiply_half(const uint32_t (&codes)[2][4],
                                                const uint32_t (&words)[2],
                                                const uint4* row,
                                                Sums& sums,
                                                Sums& others) const {
    uint32_t by[2][2];  // of either column, for its first and for its second 16 neighbours
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (D::kIsPair) {
        const uint32_t both = few_rows::folded_e4m3(T{}, words[i]);
        by[i][0] = __byte_perm(both, 0, 0x1010);
        by[i][1] = __byte_perm(both, 0, 0x3232);
      } else if constexpr (D::kFolds) {
        by[i][0] = kIsSpecial ? few_rows::unfolded_e8m0(words[i]) : few_rows::folded_e8m0(words[i]);
        by[i][1] = by[i][0];
      } else {
        by[i][0] = few_rows::subtrahend<D::kCode>(T{}, p_.w.default_zero_point);
        by[i][1] = by[i][0];
      }
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint4 x = few_rows::in_order_of<D::kCode>(row[w]);
      uint32_t pairs[2][4];
      few_rows::decode_pairs<D, kIsSpecial>(&codes[0][w], by[0][w / 2], pairs[0]);
      few_rows::decode_pairs<D, kIsSpecial>(&codes[1][w], by[1][w / 2], pairs[1]);
      const uint32_t first[4] = {pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]};
      const uint32_t second[4] = {pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3]};
      product(T{}, sums, first, x.x, x.y);
      product(T{}, others, second, x.z, x.w);
    }
  }
  __device__ __forceinline__ static void product(
      BFloat16, Sums& sums, const uint32_t (&elements)[4], uint32_t x0, uint32_t x1) {
    ptx::mma_bf16(sums, elements, x0, x1);
  }
  __device__ __forceinline__ static void product(
      Float16, Sums& sums, const uint32_t (&elements)[4], uint32_t x0, uint32_t x1) {
    ptx::mma_f16(sums, elements, x0, x1);
  }

  __device__ __forceinline__ float row_factor(const Place& place, int row) const {
    if (p_.a.scales == RowScales::kNone || row >= place.tile.rows) {
      return 1.0f;
    }
    const int own = place.tile.row + row;
    const float scale =
        row_scale(p_.a, p_.index != nullptr ? p_.index[own] : own, place.tile.group, 0);
    return p_.a.divides ? 1.0f / scale : scale;
  }

  __device__ __forceinline__ void finish(const Place& place, const Sums& sums) const {
    float values[4];
    const float by_row[2] = {row_factor(place, 2 * part()), row_factor(place, 2 * part() + 1)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int n = column_of(place, i);
      float factor = D::kColumnFactor;
      if constexpr (D::kIsPair) {
        factor *= global_factor(p_.w, place.tile.group, n);
      }
      const float bias = p_.bias != nullptr ? p_.bias[int64_t{place.tile.group} * p_.n + n] : 0.0f;
      values[2 * i] = sums[2 * i] * factor * by_row[0] + bias;
      values[2 * i + 1] = sums[2 * i + 1] * factor * by_row[1] + bias;
    }
    if (p_.activates) {
      store_pair(place, place.column,
                 silu_pair<BFloat16>(narrow_pair(BFloat16{}, values[0], values[1]),
                                     narrow_pair(BFloat16{}, values[2], values[3])));
      return;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = place.column + i * kEight;
      const float* own = values + 2 * i;
      if (p_.out_dtype == DType::kF32) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int row = 2 * part() + j;
          if (row < place.tile.rows) {
            static_cast<float*>(p_.out)[int64_t{place.tile.row + row} * p_.n + column + quad()] =
                own[j];
          }
        }
      } else {
        store_pair(place, column,
                   p_.out_dtype == DType::kBF16 ? narrow_pair(BFloat16{}, own[0], own[1])
                                                : narrow_pair(Float16{}, own[0], own[1]));
      }
    }
  }
  __device__ __forceinline__ void store_pair(const Place& place, int column, uint32_t pair) const {
    const int width = p_.activates ? p_.n / 2 : p_.n;
    store_eight(place.tile, static_cast<uint16_t*>(p_.out) + column, width, pair);
  }

  const Args& p_;
  const Groups& groups_;
  uint64_t evict_first_ = ptx::evict_first();
  uint32_t ring_;
  uint32_t full_;
  Items<kWarps> items_;

  // These tell what is requested next.
  Place place_;
  int next_byte_;

  // These belong to the item that is multiplied.
  const uint8_t* scales_[2];

  // These belong to its stage that comes next.
  int k_;         // the lane's first
  const T* row_;  // from k_ on; lanes without a row have another lane's
  uint32_t words_[kHalves][2];
};

template <typename D>
__global__ void __launch_bounds__(kThreads, kBlocks)
    thin_codes_kernel(const __grid_constant__ Args args) {
  __shared__ Shared shared;
  extern __shared__ __align__(1024) uint8_t stages[];
  if (threadIdx.x == 0) {
    init_barriers(&shared.full[0][0], kWarps * kStages, &args.codes);
  }
  if (!args.rows.settled) {
    ptx::await_kernel_before();
  }
  find_tiles<kThreads>(args.rows, shared.groups);
  Worker<D>(args, shared, stages).run();
}

using Kernel = void (*)(Args);

template <typename T>
Kernel find_kernel(const WeightArgs& w) {
  const DType scale = w.scale_dtype;
  const bool is_nvfp4 = scale == DType::kF8E4M3;
  if (w.code == Code::kU4) {
    return scale == DType::kF32    ? thin_codes_kernel<Decoding<Code::kU4, float, T>>
           : scale == DType::kBF16 ? thin_codes_kernel<Decoding<Code::kU4, BFloat16, T>>
                                   : thin_codes_kernel<Decoding<Code::kU4, Float16, T>>;
  }
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (w.is_packed) {
      constexpr Changes kNever = Changes::kNever;
      return is_nvfp4 ? thin_codes_kernel<Decoding<Code::kE2M1, uint16_t, T, kNever, true>>
                      : thin_codes_kernel<Decoding<Code::kE2M1, uint8_t, T, kNever, true>>;
    }
    if (!is_nvfp4) {
      return thin_codes_kernel<Decoding<Code::kE2M1, uint8_t, T>>;
    }
  }
  return is_nvfp4 ? thin_codes_kernel<Decoding<Code::kE2M1, uint16_t, T>> : nullptr;
}

CUtensorMap map_of(const Args& args, const Tensor& codes, int64_t num_groups) {
  const int64_t bytes = args.w.row_bytes;
  const int64_t n = args.n;
  const MapDim line{bytes, 1, kLineBytes};
  const auto type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const auto swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  if (args.activates) {
    return make_tensor_map(codes.raw(), type, swizzle,
                           {line,
                            {n / 2, bytes, kEight},
                            {2, n / 2 * bytes, 2},
                            {num_groups, n * bytes, 1},
                            {1, num_groups * n * bytes, 1}},
                           Lines::kSingle);
  }
  return make_tensor_map(codes.raw(), type, swizzle,
                         {line,
                          {kEight, bytes, kEight},
                          {2, kEight * bytes, 2},
                          {num_groups * n / kItemColumns, kItemColumns * bytes, 1},
                          {1, num_groups * n * bytes, 1}},
                         Lines::kSingle);
}

}  // namespace
}  // namespace thin

void thin_codes_gemm(const ExpertGemm& gemm, const GemmPlan& plan, const Stream& on) {
  using namespace thin;
  const int index = on.device().index;
  const DeviceGuard guard(index);
  Args args{};
  static_cast<GemmArgs&>(args) = gemm_args(gemm);
  args.index = gemm.a.index ? gemm.a.index.data<int32_t>() : nullptr;
  args.activates = plan.activates;
  args.lets_next_begin = gemm.max_sms == 0;
  args.next_item = gemm.next_item ? gemm.next_item.data<int>() : nullptr;
  args.scale_shift = scale_shift(args.w);
  args.codes = map_of(args, gemm.w->values, gemm.w->values.dim(0));
  const Kernel kernel = gemm.a.values.dtype() == DType::kF16 ? find_kernel<Float16>(args.w)
                                                             : find_kernel<BFloat16>(args.w);
  assert(kernel != nullptr);
  const int64_t items = most_tiles(gemm.rows, gemm.out.dim(0), kThinRows) * (args.n / kItemColumns);
  // There is one block per SM if half of its warps have items.  Otherwise some SMs are left to what
  // runs beside it.
  constexpr int64_t kFewItems = kWarps / 2;
  const int64_t spread = std::min(ceil_div(items, kFewItems), blocks_of(gemm, 1, index));
  const auto grid = static_cast<unsigned>(
      std::clamp(ceil_div(items, int64_t{kWarps}), spread, blocks_of(gemm, kBlocks, index)));
  constexpr int kBytes = kWarps * kRingBytes;
  allow_shared_bytes(index, reinterpret_cast<const void*>(kernel), kBytes);
  launch_early("thin_codes_kernel", kernel, grid, kThreads, kBytes, as_stream(on.native_handle()),
               args);
}

}  // namespace moebius::cuda
