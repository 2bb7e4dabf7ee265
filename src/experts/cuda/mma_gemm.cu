// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Grouped GEMM on the tensor cores for operands whose codes bf16, f16 or int8 hold exactly: any N
// and K, any format.  Blocks walk over output tiles of kRows x kCols; both operands are brought to
// elements in shared memory, 64 bytes of each row at a time, while the bytes of the next step are
// on their way.  Sums of a segment (the columns that share scales on both sides) are scaled in f32
// and added up in order; int8 segments are summed exactly.
//
// 8 warps of 32 x 32.  Rows of a tile are kStride bytes apart, so that the eight rows that ldmatrix
// reads at once lie in different banks.
#include <algorithm>
#include <type_traits>

#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/mma.cuh"
#include "experts/cuda/expert_gemm.h"
#include "experts/cuda/mma_units.cuh"
#include "experts/cuda/tile_walk.cuh"

namespace moebius::cuda {

namespace {

constexpr int kRows = 128;
constexpr int kCols = 64;
constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kOwn = 32;  // rows and columns of a warp
constexpr int kWarpsAcross = kCols / kOwn;
constexpr int kStepBytes = 64;
constexpr int kStride = kStepBytes + 16;
constexpr int kUnits = kStepBytes / 16;  // of a row in a step
constexpr int kRowUnits = kRows * kUnits / kThreads;
constexpr int kColUnits = kCols * kUnits / kThreads;
static_assert(kRows / kOwn * kWarpsAcross * kWarp == kThreads);

template <typename T>
constexpr int kStep = kStepBytes / static_cast<int>(sizeof(T));  // columns

struct Args {
  RowArgs a;
  WeightArgs w;
  const float* bias;  // [G, N] or nullptr
  RowGroups rows;
  void* out;
  DType out_dtype;
  int n;
  int k;
  int segment;  // columns that share scales; a multiple of the step unless it is all of them
  bool folds;   // block scales of w are in its elements
  bool a_is_vector;
  bool w_is_vector;
};

template <typename T>
using Sum = std::conditional_t<std::is_same_v<T, int8_t>, int32_t, float>;

template <typename T>
__device__ __forceinline__ void multiply(Sum<T> (&d)[4],
                                         const uint32_t (&a)[4],
                                         uint32_t b0,
                                         uint32_t b1) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    ptx::mma_bf16(d, a, b0, b1);
  } else if constexpr (std::is_same_v<T, Float16>) {
    ptx::mma_f16(d, a, b0, b1);
  } else {
    ptx::mma_s8(d, a, b0, b1);
  }
}

struct Tiles {
  uint8_t a[kRows][kStride];
  uint8_t w[kCols][kStride];
};

// One step's products of a warp's 32 x 32.
template <typename T>
__device__ __forceinline__ void multiply_step(const Tiles& tiles,
                                              int row,
                                              int col,
                                              Sum<T> (&sums)[2][4][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int byte = 0; byte < kStepBytes; byte += 32) {
    uint32_t a[2][4];
    uint32_t w[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Matrices: rows 0-7, rows 8-15, and both again 16 bytes on.
      ptx::ldmatrix_x4(a[i], &tiles.a[row + 16 * i + lane % 16][byte + lane / 16 * 16]);
      // Columns 0-7, the same 16 bytes on, then columns 8-15.
      ptx::ldmatrix_x4(w[i],
                       &tiles.w[col + 16 * i + lane % 8 + lane / 16 * 8][byte + lane / 8 % 2 * 16]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        multiply<T>(sums[i][j], a[i], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
}

// Scales of the 4 rows and 8 columns that a lane holds, for one segment.
struct Scales {
  float row[4];
  float col[8];
};

__device__ __forceinline__ float column_scale(const Args& p, int g, int n, int k) {
  if (!p.w.is_coded) {
    return 1.0f;
  }
  if (p.folds) {
    return p.w.scale_dtype == DType::kF8E4M3 ? global_factor(p.w, g, n) : 1.0f;
  }
  return weight_scale(p.w, scale_row(p.w, g, n) + k / p.w.group_cols);
}

__device__ __forceinline__ void load_scales(
    const Args& p, const TilePlace& place, int row, int col, int k, Scales& scales) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t at = place.begin + row + 8 * i + lane / 4;
    const float scale = at < place.end ? row_scale(p.a, at, place.group, k) : 1.0f;
    scales.row[i] = p.a.divides ? 1.0f / scale : scale;
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int n = col + j / 2 * 8 + lane % 4 * 2 + j % 2;
    scales.col[j] = n < p.n ? column_scale(p, place.group, n, k) : 1.0f;
  }
}

template <typename S>
__device__ __forceinline__ void add_segment(const Scales& scales,
                                            S (&sums)[2][4][4],
                                            float (&totals)[2][4][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        totals[i][j][e] += static_cast<float>(sums[i][j][e]) * scales.row[2 * i + e / 2] *
                           scales.col[2 * j + e % 2];
        sums[i][j][e] = 0;
      }
    }
  }
}

__device__ __forceinline__ void store_tile(
    const Args& p, const TilePlace& place, int row, int col, const float (&totals)[2][4][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t at = place.begin + row + 8 * i + lane / 4;
    if (at >= place.end) {
      continue;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int n = col + j / 2 * 8 + lane % 4 * 2 + j % 2;
      if (n < p.n) {
        float value = totals[i / 2][j / 2][i % 2 * 2 + j % 2];
        if (p.bias != nullptr) {
          value += p.bias[int64_t{place.group} * p.n + n];
        }
        quant::device::store_element(p.out, p.out_dtype, at * p.n + n, value);
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) mma_gemm_kernel(const __grid_constant__ Args p) {
  __shared__ TileStarts starts;
  __shared__ __align__(16) Tiles tiles[2];
  find_tiles<kThreads>(p.rows, kRows, starts);

  const int tiles_across = (p.n + kCols - 1) / kCols;
  const int num_tiles = starts.before[p.rows.num_groups] * tiles_across;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp_row = thread / kWarp / kWarpsAcross * kOwn;
  const int warp_col = thread / kWarp % kWarpsAcross * kOwn;
  const int unit = thread % kUnits;  // of a row in a step, and which row
  const int line = thread / kUnits;
  constexpr int kLines = kThreads / kUnits;
  const int num_steps = (p.k + kStep<T> - 1) / kStep<T>;

  for (int tile = static_cast<int>(blockIdx.x); tile < num_tiles;
       tile += static_cast<int>(gridDim.x)) {
    const TilePlace place = find_tile(p.rows, starts, tile / tiles_across, kRows);
    const int g = place.group;
    const int first_col = tile % tiles_across * kCols;
    uint4 raw_a[kRowUnits];
    uint4 raw_w[kColUnits];
    const auto load = [&](int step) {
      const int k = step * kStep<T> + unit * kUnit<T>;
#pragma unroll
      for (int i = 0; i < kRowUnits; ++i) {
        const int64_t row = place.begin + line + i * kLines;
        raw_a[i] = row < place.end ? load_row_unit<T>(p.a, row, k, p.k, p.a_is_vector)
                                   : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int i = 0; i < kColUnits; ++i) {
        const int n = first_col + line + i * kLines;
        const uint8_t* row = p.w.values + (int64_t{g} * p.n + n) * p.w.row_bytes;
        raw_w[i] =
            n < p.n ? load_weight_unit<T>(p.w, row, k, p.k, p.w_is_vector) : make_uint4(0, 0, 0, 0);
      }
    };
    const auto store = [&](int step) {
      Tiles& to = tiles[step % 2];
      const int k = step * kStep<T> + unit * kUnit<T>;
#pragma unroll
      for (int i = 0; i < kRowUnits; ++i) {
        *reinterpret_cast<uint4*>(&to.a[line + i * kLines][unit * 16]) = row_unit<T>(p.a, raw_a[i]);
      }
#pragma unroll
      for (int i = 0; i < kColUnits; ++i) {
        const int n = min(first_col + line + i * kLines, p.n - 1);
        const int64_t scales = p.w.is_coded ? scale_row(p.w, g, n) : 0;
        *reinterpret_cast<uint4*>(&to.w[line + i * kLines][unit * 16]) =
            weight_unit<T>(p.w, raw_w[i], scales, k, p.folds);
      }
    };

    Sum<T> sums[2][4][4] = {};
    float totals[2][4][4] = {};
    Scales scales;
    load(0);
    __syncthreads();  // the last output tile's steps are read
    store(0);
    for (int step = 0; step < num_steps; ++step) {
      __syncthreads();
      if (step + 1 < num_steps) {
        load(step + 1);
      }
      if (step * kStep<T> % p.segment == 0) {
        load_scales(p, place, warp_row, first_col + warp_col, step * kStep<T>, scales);
      }
      multiply_step<T>(tiles[step % 2], warp_row, warp_col, sums);
      if (step + 1 == num_steps || (step + 1) * kStep<T> % p.segment == 0) {
        add_segment(scales, sums, totals);
      }
      if (step + 1 < num_steps) {
        store(step + 1);
      }
    }
    store_tile(p, place, warp_row, first_col + warp_col, totals);
  }
}

// 128 * 128 * k stays below 2^31.
constexpr int64_t kMaxS8Depth = (int64_t{1} << 17) - 1;

enum class Kind : uint8_t { kNone, kBf16, kF16, kS8 };

// kNone: the operands have no exact place on the tensor cores.
Kind kind_of(const ExpertGemm& gemm) {
  const DType a = gemm.a.values.dtype();
  const WeightOperand& w = *gemm.w;
  const bool is_coded = w.quant.format.has_value();
  const bool fits_s32 = w.values.dim(2) <= kMaxS8Depth;
  if (a == DType::kI8 && w.quant.format == QuantFormat::kInt8 && !w.quant.zero_point && fits_s32) {
    return Kind::kS8;
  }
  const Kind kind = a == DType::kF32 ? Kind::kNone : a == DType::kF16 ? Kind::kF16 : Kind::kBf16;
  const DType element = kind == Kind::kF16 ? DType::kF16 : DType::kBF16;
  return is_coded || w.values.dtype() == element ? kind : Kind::kNone;
}

int step_of(Kind kind) {
  return kind == Kind::kS8 ? kStep<int8_t> : kStep<BFloat16>;
}

// Block scales that elements hold with their codes: powers of two in bf16's range of exponents, and
// e4m3 times e2m1.
bool folds(const WeightOperand& w, Kind kind) {
  return w.quant.format == QuantFormat::kNvfp4 ||
         (w.quant.format && is_ocp_mx(*w.quant.format) && kind == Kind::kBf16);
}

// Columns that share scales on both sides; 0: they do not come in whole steps.
int segment_of(const ExpertGemm& gemm, Kind kind) {
  const RowArgs a = row_args(gemm.a);
  const WeightArgs w = weight_args(*gemm.w);
  const int k = static_cast<int>(gemm.w->values.dim(2));
  const int step = step_of(kind);
  const int a_block = a.scales == RowScales::kPerRow && a.num_blocks > 1 ? a.block : k;
  const bool has_blocks = w.is_coded && w.scale_cols > 1;
  const int w_block = has_blocks && !folds(*gemm.w, kind) ? w.group_cols : k;
  if (has_blocks && w.group_cols % kVector != 0) {
    return 0;
  }
  const int segment = std::min(a_block, w_block);
  const int other = std::max(a_block, w_block);
  const bool is_whole =
      (segment == k || segment % step == 0) && (other == k || other % segment == 0);
  return is_whole ? segment : 0;
}

bool is_vector(const void* p, int64_t row_bytes, int64_t unit_alignment, int k, int unit) {
  return k % unit == 0 && row_bytes % unit_alignment == 0 &&
         is_aligned(p, static_cast<size_t>(unit_alignment));
}

}  // namespace

bool can_mma_gemm(const ExpertGemm& gemm) {
  const Kind kind = kind_of(gemm);
  return kind != Kind::kNone && segment_of(gemm, kind) > 0;
}

void mma_gemm(const ExpertGemm& gemm, const Stream& on) {
  const int index = on.device().index;
  const DeviceGuard guard(index);
  const WeightOperand& w = *gemm.w;
  const Kind kind = kind_of(gemm);
  const int unit = kind == Kind::kS8 ? kUnit<int8_t> : kUnit<BFloat16>;
  Args args{};
  args.a = row_args(gemm.a);
  args.w = weight_args(w);
  args.bias = w.quant.bias ? w.quant.bias.data<float>() : nullptr;
  args.rows = gemm.rows;
  args.out = gemm.out.raw();
  args.out_dtype = gemm.out.dtype();
  args.n = static_cast<int>(w.values.dim(1));
  args.k = static_cast<int>(w.values.dim(2));
  args.segment = segment_of(gemm, kind);
  args.folds = folds(w, kind);
  const int64_t a_size = bits(gemm.a.values.dtype()) / 8;
  args.a_is_vector = is_vector(args.a.values, args.k * a_size, unit * a_size, args.k, unit);
  const auto w_alignment = args.w.is_coded && unit == kVector
                               ? static_cast<int64_t>(quant::device::vector_alignment(args.w.code))
                               : 16;
  args.w_is_vector = is_vector(args.w.values, args.w.row_bytes, w_alignment, args.k, unit);
  const int64_t most =
      most_tiles(gemm.rows, gemm.out.dim(0), kRows) * ((args.n + kCols - 1) / kCols);
  constexpr int64_t kBlocksPerSm = 2;
  const auto blocks = static_cast<unsigned>(std::min(most, kBlocksPerSm * num_sms(index)));
  const auto kernel = kind == Kind::kS8    ? mma_gemm_kernel<int8_t>
                      : kind == Kind::kF16 ? mma_gemm_kernel<Float16>
                                           : mma_gemm_kernel<BFloat16>;
  kernel<<<blocks, kThreads, 0, as_stream(on.native_handle())>>>(args);
  check_launch("mma_gemm_kernel");
}

}  // namespace moebius::cuda
