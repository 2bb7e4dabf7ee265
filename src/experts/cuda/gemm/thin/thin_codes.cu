// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A grouped GEMM of weights in codes of 4 bits for the fewest rows per group, with no kernel ahead
// of it that orders rows.  On the tensor cores 16 columns of the result, decoded in registers, are
// the operand of 16 rows, and eight rows of activations, or eight digits of two rows, are its
// columns (value_products.cuh, digit_products.cuh).
//
// Item: a tile of rows of a group times two eights of columns, over all of K.  They are neighbours,
// or, where the kernel activates, eight columns of gate and those of up that belong to them, so a
// thread has both.
// Grid: persistent blocks, two per SM where there are items for all of their warps.  Every warp
// computes items of its own and waits for no other warp.
// Stages: each warp has a ring of its own, which it fills itself by TMA, and on from item to item.
// It is short, since the stages of a warp come after all that others have asked for.
// Scales and rows are loaded by lanes; an item's scales are fetched to L2 when it is requested.
#include <algorithm>
#include <cassert>
#include <limits>
#include <type_traits>

#include "core/ceil_div.h"
#include "core/cuda/device.h"
#include "core/cuda/launch.cuh"
#include "experts/cuda/activation/activation.cuh"
#include "experts/cuda/gemm/tensor_map.h"
#include "experts/cuda/gemm/thin/digit_products.cuh"
#include "experts/cuda/gemm/thin/value_products.cuh"

namespace moebius::cuda {

namespace thin {
namespace {

using few_rows::Changes;
using few_rows::Decoding;
using quant::Code;

constexpr int kWarps = 8;
constexpr int kBlocks = 2;  // on an SM
constexpr int kThreads = kWarps * kWarp;
constexpr int kStageBytes = 2 * kEightBytes;
constexpr int kStages = 2;
constexpr int kRingBytes = kStages * kStageBytes;
constexpr int kDrawSteps = 2;  // an item is drawn so long before it is requested
static_assert((kStages - 1) * kStep == kThinCodeDepth);
static_assert(kStages == 2);  // products load a stage ahead, and aim with the last but one

struct Shared {
  uint64_t full[kWarps][kStages];  // codes have arrived
  Groups groups;
};

// Products: ValueProducts or DigitProducts.
template <typename Products>
constexpr int kBytes = kWarps*(kRingBytes + Products::kSharedBytes);

template <typename D, typename Products>
class Worker {
 public:
  // `shared`: the rings of all warps, and then what their products need.
  __device__ __forceinline__ Worker(const Args& args, Shared& barriers, const uint8_t* shared)
      : p_(args),
        groups_(barriers.groups),
        ring_(ptx::opaque(ptx::shared_address(shared) + warp() * kRingBytes)),
        full_(ptx::opaque(ptx::shared_address(barriers.full[warp()]))),
        items_(args.next_item,
               groups_.first_tile[args.rows.num_groups] * static_cast<int>(args.across)),
        products_(
            args,
            ptx::shared_address(shared) + kWarps * kRingBytes + warp() * Products::kSharedBytes) {}

  __device__ __forceinline__ void run() {
    const bool has_items = begin_items(items_.exists(), p_.lets_next_begin, [&] {
      find();
      request(0);
    });
    if (!has_items) {
      return;
    }
    const int steps = (p_.k + kStep - 1) / kStep;
    const int draw_step = max(0, steps - kStages - kDrawSteps);
    int stage = 0;
    uint32_t parity = 0;
    products_.aim(place_);
    products_.load();
    // Why not before: the first stages of all warps come sooner without these, as does what the
    // kernel ahead still reads.
    for (int later = 1; later < kStages; ++later) {
      request(later);
    }
    while (items_.exists()) {
      const Place place = place_;
      products_.begin();
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        products_.prepare();
        ptx::mbarrier_wait_parity(full_ + stage * uint32_t{sizeof(uint64_t)}, parity);
        products_.multiply(ring_ +
                           static_cast<uint32_t>(stage * kStageBytes + quad() * kLineBytes));
        __syncwarp();  // the stage has been read
        if (step < draw_step || goes_on(step, draw_step, steps)) {
          request(stage);
        }
        if (++stage == kStages) {
          stage = 0;
          parity ^= 1;
        }
      }
      float sums[4];
      products_.sums(sums);
      finish(place, sums);
    }
    items_.finish();
  }

 private:
  // Returns whether there are more stages to be requested.
  __device__ __forceinline__ bool goes_on(int step, int draw_step, int steps) {
    if (step == draw_step) {
      items_.draw();
    }
    if (step == steps - kStages) {  // all of this item has been requested, and loaded
      items_.advance();
      if (items_.exists()) {
        find();
        products_.aim(place_);
      }
    }
    return items_.exists();
  }
  // Finds the item that is requested next.
  __device__ __forceinline__ void find() {
    unsigned place_across;
    const unsigned tile = p_.tile_of(static_cast<unsigned>(items_.item()), place_across);
    place_.tile = find_tile<Products::kRows>(groups_, p_.rows.num_groups, static_cast<int>(tile));
    place_.column = static_cast<int>(place_across) * (p_.activates ? kEight : kItemColumns);
    next_byte_ = 0;
    box_column_ = p_.activates ? place_.column : 0;
    box_group_ = p_.activates ? place_.tile.group
                              : (place_.tile.group * p_.n + place_.column) / kItemColumns;
    products_.find(place_);
  }
  __device__ __forceinline__ void request(int stage) {
    if (ptx::elect_one()) {
      const uint32_t full = full_ + stage * uint32_t{sizeof(uint64_t)};
      ptx::mbarrier_arrive_expect_tx(full, kStageBytes);
      const int at[5] = {next_byte_, box_column_, 0, box_group_, 0};
      ptx::tensor_load(ring_ + static_cast<uint32_t>(stage * kStageBytes), &p_.codes, at, full,
                       evict_first_);
    }
    next_byte_ += kLineBytes;
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

  __device__ __forceinline__ void finish(const Place& place, const float (&sums)[4]) const {
    float values[4];
    const float by_row[2] = {row_factor(place, 2 * part()), row_factor(place, 2 * part() + 1)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int n = column_of(p_, place, i);
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

  Products products_;

  // These tell what is requested next.
  Place place_;
  int next_byte_;
  int box_column_;  // see map_of()
  int box_group_;
};

template <typename D, typename Products>
__global__ void __launch_bounds__(kThreads, kBlocks)
    thin_codes_kernel(const __grid_constant__ Args args) {
  __shared__ Shared shared;
  extern __shared__ __align__(1024) uint8_t rings[];
  if (threadIdx.x == 0) {
    init_barriers(&shared.full[0][0], kWarps * kStages, &args.codes);
  }
  if (!args.rows.settled) {
    ptx::await_kernel_before();
  }
  find_tiles<kThreads, Products::kRows>(args.rows, shared.groups);
  Worker<D, Products>(args, shared, rings).run();
}

struct Kernel {
  void (*function)(Args);
  int rows;   // of a tile
  int bytes;  // of shared memory
};

template <typename D>
Kernel kernel_of() {
  using Products = std::conditional_t<D::kCode == Code::kU4, DigitProducts<D>, ValueProducts<D>>;
  return {thin_codes_kernel<D, Products>, Products::kRows, kBytes<Products>};
}

template <typename T>
Kernel find_kernel(const WeightArgs& w) {
  const DType scale = w.scale_dtype;
  const bool is_nvfp4 = scale == DType::kF8E4M3;
  if (w.code == Code::kU4) {
    constexpr Changes kBetween = Changes::kBetweenSteps;
    return scale == DType::kF32    ? kernel_of<Decoding<Code::kU4, float, T, kBetween>>()
           : scale == DType::kBF16 ? kernel_of<Decoding<Code::kU4, BFloat16, T, kBetween>>()
                                   : kernel_of<Decoding<Code::kU4, Float16, T, kBetween>>();
  }
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (w.is_packed) {
      constexpr Changes kNever = Changes::kNever;
      return is_nvfp4 ? kernel_of<Decoding<Code::kE2M1, uint16_t, T, kNever, true>>()
                      : kernel_of<Decoding<Code::kE2M1, uint8_t, T, kNever, true>>();
    }
    if (!is_nvfp4) {
      return kernel_of<Decoding<Code::kE2M1, uint8_t, T>>();
    }
  }
  assert(is_nvfp4);
  return kernel_of<Decoding<Code::kE2M1, uint16_t, T>>();
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
  args.across = static_cast<unsigned>(args.n / kItemColumns);
  args.per_across = static_cast<unsigned>(
      std::min((uint64_t{1} << 32) / args.across, uint64_t{std::numeric_limits<unsigned>::max()}));
  args.codes = map_of(args, gemm.w->values, gemm.w->values.dim(0));
  const Kernel kernel = gemm.a.values.dtype() == DType::kF16 ? find_kernel<Float16>(args.w)
                                                             : find_kernel<BFloat16>(args.w);
  const int64_t items =
      most_tiles(gemm.rows, gemm.out.dim(0), kernel.rows) * (args.n / kItemColumns);
  // There is one block per SM if half of its warps have items.  Otherwise some SMs are left to what
  // runs beside it.
  constexpr int64_t kFewItems = kWarps / 2;
  const int64_t spread = std::min(ceil_div(items, kFewItems), blocks_of(gemm, 1, index));
  const auto grid = static_cast<unsigned>(
      std::clamp(ceil_div(items, int64_t{kWarps}), spread, blocks_of(gemm, kBlocks, index)));
  allow_shared_bytes(index, reinterpret_cast<const void*>(kernel.function), kernel.bytes);
  launch_early("thin_codes_kernel", kernel.function, grid, kThreads,
               static_cast<size_t>(kernel.bytes), as_stream(on.native_handle()), args);
}

}  // namespace moebius::cuda
