// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A grouped GEMM on the tensor cores for operands whose codes bf16, f16 or int8 hold exactly, with
// any N and K and any format.  Blocks walk over output tiles of kRows x kCols, in steps of 64 bytes
// of elements.  The bytes of both operands arrive in a ring of kStages steps.  Codes are decoded
// into a second pair of tiles one step before they are multiplied.  Sums of a segment (the columns
// that share scales on both sides) are scaled in f32 and added up in order; int8 segments are
// summed exactly.
//
// A block has 8 warps of 32 x 32 elements.  Rows of a tile are kStride bytes apart, so that the
// eight rows that ldmatrix reads at once lie in different banks.
#include <algorithm>
#include <type_traits>

#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/mma.cuh"
#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/gemm/mma/mma_units.cuh"
#include "experts/cuda/gemm/tile_walk.cuh"
#include "experts/int8_depth.h"

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
constexpr int kLines = kThreads / kUnits;
constexpr int kStages = 4;
static_assert(kRows / kOwn * kWarpsAcross * kWarp == kThreads);
static_assert(kCols == kLines && kRows % kLines == 0);

template <typename T>
constexpr int kStep = kStepBytes / static_cast<int>(sizeof(T));  // columns

struct Args : GemmArgs {
  RowBytes a_bytes;
  RowBytes w_bytes;
  int segment;  // columns that share scales
  int segment_steps;
  bool folds;  // block scales of w are in its elements
  bool decodes_a;
  bool decodes_w;
  bool has_unit_scales;  // units of w have scales or zero points of their own
};

struct Tiles {
  uint8_t a[kRows][kStride];
  uint8_t w[kCols][kStride];
};

struct Shared {
  Tiles arriving[kStages];         // bytes as they lie in memory
  Tiles decoded[2];                // elements of operands that are codes
  float scales[2][kCols + kRows];  // of the columns, then of the rows, for a segment
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

// The 16-byte chunks of a tile that a thread brings in every step.  They are worked out once per
// tile.
template <int kTileRows>
struct Chunks {
  static constexpr int kMost = kTileRows * kUnits / kThreads;
  const uint8_t* from[kMost];  // in the first step
  int64_t left[kMost];         // bytes of the row from there on; 0: no such row
  int to[kMost];               // in the tile; -1: no chunk

  __device__ __forceinline__ Chunks(const RowBytes& b, const uint8_t* first, int64_t exist) {
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const int index = static_cast<int>(threadIdx.x) + i * kThreads;
      const int row = index >> b.shift;
      const int at = (index - (row << b.shift)) * 16;
      to[i] = row < kTileRows ? row * kStride + at : -1;
      left[i] = row < exist ? b.row_bytes - at : 0;
      from[i] = first + (row < exist ? row * b.row_bytes + at : 0);
    }
  }

  __device__ __forceinline__ void request(int64_t offset, uint8_t* tile) const {
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (to[i] >= 0) {
        const bool exists = offset < left[i];
        ptx::copy_async_16(tile + to[i], exists ? from[i] + offset : from[i], exists);
      }
    }
  }
};

// The same for rows that are not whole 16-byte chunks: those of 6-bit codes, or of odd lengths.
template <int kTileRows>
__device__ void request_pieces(
    const RowBytes& b, const uint8_t* first, int64_t exist, int64_t step_offset, uint8_t* tile) {
  constexpr int kPiece = 8;
  const int pieces = b.step_bytes / kPiece;
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * pieces; i += kThreads) {
    const int row = i / pieces;
    const int at = i % pieces * kPiece;
    const int64_t offset = step_offset + at;
    const bool exists = row < exist && offset < b.row_bytes;
    const uint8_t* from = exists ? first + row * b.row_bytes + offset : first;
    uint8_t* to = tile + row * kStride + at;
    if (b.chunk > 0) {
      ptx::copy_async_8(to, from, exists);
    } else {
      for (int j = 0; j < kPiece; ++j) {
        to[j] = exists && offset + j < b.row_bytes ? from[j] : uint8_t{0};
      }
    }
  }
}

// Adds one step's products to the 32 x 32 sums of a warp.
template <typename T>
__device__ __forceinline__ void multiply_step(const uint8_t (*a_tile)[kStride],
                                              const uint8_t (*w_tile)[kStride],
                                              Sum<T> (&sums)[2][4][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int byte = 0; byte < kStepBytes; byte += 32) {
    uint32_t a[2][4];
    uint32_t w[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // The four matrices are rows 0-7, rows 8-15, and both again 16 bytes on.
      ptx::ldmatrix_x4(a[i], &a_tile[16 * i + lane % 16][byte + lane / 16 * 16]);
      // These are columns 0-7, the same 16 bytes on, then columns 8-15 likewise.
      ptx::ldmatrix_x4(w[i], &w_tile[16 * i + lane % 8 + lane / 16 * 8][byte + lane / 8 % 2 * 16]);
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

// Adds sums * scales of the segment to totals, and clears sums.
template <typename S>
__device__ __forceinline__ void add_segment(const float* row_scales,
                                            const float* col_scales,
                                            S (&sums)[2][4][4],
                                            float (&totals)[2][4][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 col = *reinterpret_cast<const float2*>(col_scales + 8 * j + lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float row = row_scales[16 * i + 8 * (e / 2) + lane / 4];
        totals[i][j][e] += static_cast<float>(sums[i][j][e]) * row * (e % 2 == 0 ? col.x : col.y);
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
    for (int j = 0; j < 4; ++j) {
      const int n = col + 8 * j + lane % 4 * 2;
      float2 v = {totals[i / 2][j][i % 2 * 2], totals[i / 2][j][i % 2 * 2 + 1]};
      if (p.bias != nullptr) {
        const float* bias = p.bias + int64_t{place.group} * p.n;
        v.x += n < p.n ? bias[n] : 0.0f;
        v.y += n + 1 < p.n ? bias[n + 1] : 0.0f;
      }
      if (p.n % 2 == 0 && n < p.n) {
        store_pair(p.out, p.out_dtype, at * p.n + n, v);
      } else if (n < p.n) {
        quant::device::store_element(p.out, p.out_dtype, at * p.n + n, v.x);
        if (n + 1 < p.n) {
          quant::device::store_element(p.out, p.out_dtype, at * p.n + n + 1, v.y);
        }
      }
    }
  }
}

// Does what a thread has to do for a tile besides multiplying.
template <typename T>
struct Worker {
  const Args& p;
  Shared& shared;
  TilePlace place;
  int first_col;
  int line;             // row of the decoded units it makes
  int unit;             // which unit of a step
  int64_t unit_scales;  // first scale of column `line`
  int64_t own_scales;   // first scale of the column whose segment scales it fetches
  const uint8_t* a_first;
  const uint8_t* w_first;
  Chunks<kRows> a_chunks;
  Chunks<kCols> w_chunks;

  __device__ Worker(const Args& args, Shared& memory, const TilePlace& tile, int column)
      : p(args),
        shared(memory),
        place(tile),
        first_col(column),
        line(static_cast<int>(threadIdx.x) / kUnits),
        unit(static_cast<int>(threadIdx.x) % kUnits),
        unit_scales(0),
        own_scales(0),
        a_first(args.a.values + tile.begin * args.a_bytes.row_bytes),
        w_first(args.w.values + (int64_t{tile.group} * args.n + column) * args.w_bytes.row_bytes),
        a_chunks(args.a_bytes, a_first, tile.end - tile.begin),
        w_chunks(args.w_bytes, w_first, args.n - column) {
    if (p.w.is_coded) {
      unit_scales = scale_row(p.w, place.group, min(first_col + line, p.n - 1));
      own_scales = scale_row(p.w, place.group, min(first_col + thread(), p.n - 1));
    }
  }

  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

  __device__ __forceinline__ void request_step(int step) const {
    Tiles& to = shared.arriving[step % kStages];
    const int64_t a_offset = int64_t{step} * p.a_bytes.step_bytes;
    if (p.a_bytes.chunk == 16) {
      a_chunks.request(a_offset, &to.a[0][0]);
    } else {
      request_pieces<kRows>(p.a_bytes, a_first, place.end - place.begin, a_offset, &to.a[0][0]);
    }
    const int64_t w_offset = int64_t{step} * p.w_bytes.step_bytes;
    if (p.w_bytes.chunk == 16) {
      w_chunks.request(w_offset, &to.w[0][0]);
    } else {
      request_pieces<kCols>(p.w_bytes, w_first, p.n - first_col, w_offset, &to.w[0][0]);
    }
  }

  __device__ UnitScale unit_scale(int step) const {
    if (!p.has_unit_scales) {
      return {p.w.default_zero_point, 1.0f};
    }
    return load_unit_scale(p.w, unit_scales, step * kStep<T> + unit * kUnit<T>, p.folds);
  }

  __device__ void decode_step(int step, const UnitScale& scale) const {
    if constexpr (sizeof(T) == 2) {
      const Tiles& from = shared.arriving[step % kStages];
      Tiles& to = shared.decoded[step % 2];
      if (p.decodes_a) {
#pragma unroll
        for (int row = line; row < kRows; row += kLines) {
          *reinterpret_cast<uint4*>(&to.a[row][unit * 16]) =
              row_unit<T>(p.a, &from.a[row][unit * kVector]);
        }
      }
      if (p.decodes_w) {
        *reinterpret_cast<uint4*>(&to.w[line][unit * 16]) =
            weight_unit<T>(p.w, &from.w[line][unit * quant::device::vector_bytes(p.w.code)], scale);
      }
    }
  }

  // The segment scale of column thread(), or of row thread() - kCols, at column k.
  __device__ float segment_scale(int k) const {
    if (thread() < kCols) {
      if (!p.w.is_coded) {
        return 1.0f;
      }
      if (p.folds) {
        const int n = min(first_col + thread(), p.n - 1);
        return p.w.scale_dtype == DType::kF8E4M3 ? global_factor(p.w, place.group, n) : 1.0f;
      }
      return weight_scale(p.w, own_scales + k / p.w.group_cols);
    }
    const int64_t row = place.begin + thread() - kCols;
    if (thread() >= kCols + kRows || row >= place.end) {
      return 1.0f;
    }
    const float scale = row_scale(p.a, row, place.group, k);
    return p.a.divides ? 1.0f / scale : scale;
  }
  __device__ void put_segment_scale(int segment, float scale) const {
    if (thread() < kCols + kRows) {
      shared.scales[segment % 2][thread()] = scale;
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) mma_gemm_kernel(const __grid_constant__ Args p) {
  __shared__ TileStarts starts;
  extern __shared__ __align__(16) uint8_t dynamic[];
  Shared& shared = *reinterpret_cast<Shared*>(dynamic);
  find_tiles<kThreads>(p.rows, kRows, starts);

  const int tiles_across = (p.n + kCols - 1) / kCols;
  const int num_tiles = starts.before[p.rows.num_groups] * tiles_across;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warp_row = warp / kWarpsAcross * kOwn;
  const int warp_col = warp % kWarpsAcross * kOwn;
  const int num_steps = (p.k + kStep<T> - 1) / kStep<T>;

  for (int tile = static_cast<int>(blockIdx.x); tile < num_tiles;
       tile += static_cast<int>(gridDim.x)) {
    const TilePlace place = find_tile(p.rows, starts, tile / tiles_across, kRows);
    const int first_col = tile % tiles_across * kCols;
    const Worker<T> worker(p, shared, place, first_col);
    const auto request_step = [&](int step) {
      if (step < num_steps) {
        worker.request_step(step);
      }
      ptx::copy_async_commit();
    };

    __syncthreads();  // the output tile before is done with shared memory
    for (int step = 0; step < kStages - 1; ++step) {
      request_step(step);
    }
    worker.put_segment_scale(0, worker.segment_scale(0));
    const UnitScale first_scale = worker.unit_scale(0);
    ptx::copy_async_wait<kStages - 2>();
    __syncthreads();
    worker.decode_step(0, first_scale);

    // Scales are fetched a step before they are needed.
    UnitScale unit_scale = worker.unit_scale(1);
    float segment_scale = 0.0f;
    if (p.segment_steps == 1 && num_steps > 1) {
      segment_scale = worker.segment_scale(p.segment);
    }

    Sum<T> sums[2][4][4] = {};
    float totals[2][4][4] = {};
    int segment = 0;
    int left = p.segment_steps;  // steps of the segment
    for (int step = 0; step < num_steps; ++step) {
      ptx::copy_async_wait<kStages - 3>();  // the next step has arrived
      __syncthreads();
      request_step(step + kStages - 1);
      if (step + 1 < num_steps) {
        worker.decode_step(step + 1, unit_scale);
        unit_scale = worker.unit_scale(step + 2);
        if (left == 1) {
          worker.put_segment_scale(segment + 1, segment_scale);
        }
        const bool starts_after_next = p.segment_steps == 1 || left == 2;
        if (starts_after_next && step + 2 < num_steps) {
          segment_scale = worker.segment_scale((step + 2) * kStep<T>);
        }
      }
      const Tiles& arrived = shared.arriving[step % kStages];
      const Tiles& decoded = shared.decoded[step % 2];
      multiply_step<T>((p.decodes_a ? decoded : arrived).a + warp_row,
                       (p.decodes_w ? decoded : arrived).w + warp_col, sums);
      if (--left == 0 || step + 1 == num_steps) {
        const float* scales = shared.scales[segment % 2];
        add_segment(scales + kCols + warp_row, scales + warp_col, sums, totals);
        ++segment;
        left = p.segment_steps;
      }
    }
    store_tile(p, place, warp_row, first_col + warp_col, totals);
  }
}

RowBytes row_bytes_of(const void* values, int64_t row_bytes, int step_bytes) {
  RowBytes out{row_bytes, step_bytes, 0, 0};
  while (16 << out.shift < step_bytes) {
    ++out.shift;
  }
  for (const int chunk : {8, 16}) {
    if (step_bytes % chunk == 0 && row_bytes % chunk == 0 &&
        is_aligned(values, static_cast<size_t>(chunk))) {
      out.chunk = chunk;
    }
  }
  return out;
}

}  // namespace

void mma_gemm(const ExpertGemm& gemm, const Stream& on) {
  const int index = on.device().index;
  const DeviceGuard guard(index);
  const WeightOperand& w = *gemm.w;
  const MmaPlan plan = plan_mma(desc_of(gemm));
  using Kind = MmaPlan::Kind;
  const Kind kind = plan.kind;
  assert(kind != Kind::kNone && plan.segment > 0);
  Args args{};
  static_cast<GemmArgs&>(args) = gemm_args(gemm);
  args.segment = plan.segment;
  args.folds = plan.folds;
  const int step = plan.step;
  assert(step == (kind == Kind::kS8 ? kStep<int8_t> : kStep<BFloat16>));
  args.segment_steps = (args.segment + step - 1) / step;
  const auto a_bits = static_cast<int>(bits(gemm.a.values.dtype()));
  const auto w_bits = static_cast<int>(bits(w.values.dtype()));
  args.decodes_a = kind != Kind::kS8 && a_bits == 8;
  args.decodes_w = kind != Kind::kS8 && args.w.is_coded;
  args.has_unit_scales = args.decodes_w && (args.folds || args.w.zero_point != nullptr);
  args.a_bytes = row_bytes_of(args.a.values, int64_t{args.k} * a_bits / 8, step * a_bits / 8);
  args.w_bytes = row_bytes_of(args.w.values, args.w.row_bytes, step * w_bits / 8);
  const int64_t most =
      most_tiles(gemm.rows, gemm.out.dim(0), kRows) * ((args.n + kCols - 1) / kCols);
  constexpr int64_t kBlocksPerSm = 2;
  const auto blocks = static_cast<unsigned>(std::min(most, blocks_of(gemm, kBlocksPerSm, index)));
  const auto kernel = kind == Kind::kS8    ? mma_gemm_kernel<int8_t>
                      : kind == Kind::kF16 ? mma_gemm_kernel<Float16>
                                           : mma_gemm_kernel<BFloat16>;
  const auto* address = reinterpret_cast<const void*>(kernel);
  allow_shared_bytes(index, address, sizeof(Shared));
  kernel<<<blocks, kThreads, sizeof(Shared), as_stream(on.native_handle())>>>(args);
  check_launch("mma_gemm_kernel");
}

}  // namespace moebius::cuda
