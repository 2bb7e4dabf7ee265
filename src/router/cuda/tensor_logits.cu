// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Logits on tensor cores, for LogitSums::kTensorCores.  A cluster has a tile of logits, each of its
// CTAs has a piece of the depth, and the pieces are added in the order of depth.  The number of
// pieces and the steps in which each is summed depend on the depth only, so a token's logits depend
// neither on the batch nor on the tile.  The small tile is used when tokens are few, to keep more
// SMs busy.
#include "core/cuda/device.h"
#include "core/cuda/launch.cuh"
#include "core/cuda/mma.cuh"
#include "core/cuda/ptx.cuh"
#include "router/cuda/logits.h"

namespace moebius::router {

namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kPieces = 8;      // CTAs per cluster
constexpr int kStepDepth = 64;  // a row of a stage has 128 bytes and uses every bank once
constexpr int kUnit = 8;        // elements in 16 bytes
constexpr int kStepUnits = kStepDepth / kUnit;
constexpr int kMmaTokens = 16;
constexpr int kMmaExperts = 8;
constexpr int kMmaUnits = 2;   // units of depth
constexpr int kWarpsDown = 2;  // a CTA has 2 warps along tokens and 4 along experts
constexpr int kWarpsAcross = 4;

// A CTA's tile of kSide tokens and kSide experts.
template <int kSide_, int kStages_>
struct Tile {
  static constexpr int kSide = kSide_;
  static constexpr int kStages = kStages_;
  static constexpr int kWarpTokens = kSide / kWarpsDown;
  static constexpr int kWarpExperts = kSide / kWarpsAcross;
  static constexpr int kMmasDown = kWarpTokens / kMmaTokens;
  static constexpr int kMmasAcross = kWarpExperts / kMmaExperts;

  // Unit u of row r is at u ^ r % kStepUnits, so that one unit of eight rows is in different banks.
  struct Stage {
    uint4 tokens[kSide][kStepUnits];
    uint4 experts[kSide][kStepUnits];
  };
  union Shared {
    Stage stages[kStages];
    float sums[kSide][kSide + 8];  // the sums of the piece, once its operands are used up
  };
  using Sums = float[kMmasDown][kMmasAcross][4];
};
using SmallTile = Tile<64, 6>;
using LargeTile = Tile<128, 3>;

// Brings rows of a matrix into stages, step after step.  A thread copies the same unit of every
// 32nd of kSide rows.
template <int kSide>
class Loader {
 public:
  __device__ __forceinline__ Loader(
      const void* matrix, int64_t first, int64_t num_rows, int64_t h, int64_t depth)
      : first_row_(static_cast<int>(threadIdx.x) / kStepUnits),
        unit_(static_cast<int>(threadIdx.x) % kStepUnits),
        num_rows_(static_cast<int>(min(num_rows - first, int64_t{kSide}))),
        rest_(depth - h - unit_ * kUnit),
        stride_(kRowsAtOnce * depth),
        from_(static_cast<const uint16_t*>(matrix) + (first + first_row_) * depth + h +
              unit_ * kUnit) {}

  // Units past the ends become zeros without a read.
  __device__ __forceinline__ void load_step(uint4 (&to)[kSide][kStepUnits]) {
    uint4* at = &to[first_row_][unit_ ^ first_row_ % kStepUnits];
    const uint16_t* from = from_;
#pragma unroll
    for (int i = 0; i < kSide; i += kRowsAtOnce) {
      ptx::copy_async_16(at + i * kStepUnits, from, first_row_ + i < num_rows_ && rest_ > 0);
      from += stride_;
    }
    from_ += kStepDepth;
    rest_ -= kStepDepth;
  }

 private:
  static constexpr int kRowsAtOnce = kThreads / kStepUnits;
  static_assert(kRowsAtOnce % kStepUnits == 0);

  int first_row_;
  int unit_;
  int num_rows_;
  int64_t rest_;
  int64_t stride_;
  const uint16_t* from_;
};

template <typename Shape>
__device__ __forceinline__ void add_step(const typename Shape::Stage& stage,
                                         int token,
                                         int expert,
                                         typename Shape::Sums& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int a_row = lane % 16;
  const int a_unit = lane / 16 ^ a_row % kStepUnits;
  const int b_row = lane / 16 * 8 + lane % 8;
  const int b_unit = lane / 8 % 2 ^ b_row % kStepUnits;
#pragma unroll
  for (int unit = 0; unit < kStepUnits; unit += kMmaUnits) {
    uint32_t a[Shape::kMmasDown][4];
#pragma unroll
    for (int i = 0; i < Shape::kMmasDown; ++i) {
      ptx::ldmatrix_x4(a[i], &stage.tokens[token + i * kMmaTokens + a_row][unit ^ a_unit]);
    }
#pragma unroll
    for (int j = 0; j < Shape::kMmasAcross; j += 2) {
      uint32_t b[4];
      ptx::ldmatrix_x4(b, &stage.experts[expert + j * kMmaExperts + b_row][unit ^ b_unit]);
#pragma unroll
      for (int i = 0; i < Shape::kMmasDown; ++i) {
        ptx::mma_bf16(sums[i][j], a[i], b[0], b[1]);
        ptx::mma_bf16(sums[i][j + 1], a[i], b[2], b[3]);
      }
    }
  }
}

template <typename Shape>
__global__ void __cluster_dims__(1, 1, kPieces) __launch_bounds__(kThreads, 2)
    tensor_logits_kernel(const __grid_constant__ LogitsArgs a) {
  extern __shared__ __align__(128) char memory[];
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(memory);
  const int64_t first_token = int64_t{blockIdx.x} * Shape::kSide;
  const int64_t first_expert = int64_t{blockIdx.y} * Shape::kSide;
  const int piece = static_cast<int>(blockIdx.z);
  const int num_steps = static_cast<int>((a.depth + kStepDepth - 1) / kStepDepth);
  const int piece_steps = (num_steps + kPieces - 1) / kPieces;
  const int begin = min(piece * piece_steps, num_steps);
  const int end = min(begin + piece_steps, num_steps);
  const int64_t h = int64_t{begin} * kStepDepth;
  Loader<Shape::kSide> tokens(a.hidden, first_token, a.num_tokens, h, a.depth);
  Loader<Shape::kSide> experts(a.gate, first_expert, a.num_experts, h, a.depth);
  ptx::await_kernel_before();
  ptx::let_next_begin();
  const auto load = [&](int step, auto& stage) {
    if (step < end) {
      tokens.load_step(stage.tokens);
      experts.load_step(stage.experts);
    }
    ptx::copy_async_commit();
  };
#pragma unroll
  for (int s = 0; s + 1 < Shape::kStages; ++s) {
    load(begin + s, shared.stages[s]);
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_token = warp / kWarpsAcross * Shape::kWarpTokens;
  const int warp_expert = warp % kWarpsAcross * Shape::kWarpExperts;
  typename Shape::Sums sums = {};
  int at = 0;
  for (int step = begin; step < end; ++step) {
    ptx::copy_async_wait<Shape::kStages - 2>();
    __syncthreads();  // now no thread needs the stage that is loaded next
    load(step + Shape::kStages - 1, shared.stages[at == 0 ? Shape::kStages - 1 : at - 1]);
    add_step<Shape>(shared.stages[at], warp_token, warp_expert, sums);
    at = at + 1 == Shape::kStages ? 0 : at + 1;
  }
  ptx::copy_async_wait<0>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < Shape::kMmasDown; ++i) {
#pragma unroll
    for (int j = 0; j < Shape::kMmasAcross; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_token + i * kMmaTokens + half * 8 + lane / 4;
        const int column = warp_expert + j * kMmaExperts + lane % 4 * 2;
        *reinterpret_cast<float2*>(&shared.sums[row][column]) =
            make_float2(sums[i][j][2 * half], sums[i][j][2 * half + 1]);
      }
    }
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();
  // Each CTA adds the pieces of its share of the tile.
  constexpr int kShare = Shape::kSide / kPieces;
  for (int i = static_cast<int>(threadIdx.x); i < kShare * Shape::kSide; i += kThreads) {
    const int row = piece * kShare + i / Shape::kSide;
    const int column = i % Shape::kSide;
    const uint32_t from = ptx::shared_address(&shared.sums[row][column]);
    float parts[kPieces];
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      parts[p] = ptx::ld_cluster(ptx::cluster_address(from, static_cast<uint32_t>(p)));
    }
    float total = parts[0];
#pragma unroll
    for (int p = 1; p < kPieces; ++p) {
      total += parts[p];
    }
    const int64_t token = first_token + row;
    const int64_t expert = first_expert + column;
    if (token < a.num_tokens && expert < a.num_experts) {
      a.out[token * a.num_experts + expert] = total + a.bias[expert];
    }
  }
  // No CTA ends while others read its sums.
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

template <typename Shape>
dim3 grid_of(const LogitsArgs& args) {
  const auto tiles = [](int64_t n) {
    return static_cast<unsigned>((n + Shape::kSide - 1) / Shape::kSide);
  };
  return {tiles(args.num_tokens), tiles(args.num_experts), kPieces};
}

template <typename Shape>
void launch(const LogitsArgs& args, int index, cudaStream_t stream) {
  const auto kernel = tensor_logits_kernel<Shape>;
  constexpr auto kBytes = sizeof(typename Shape::Shared);
  cuda::allow_shared_bytes(index, reinterpret_cast<const void*>(kernel), kBytes);
  cuda::launch_early("tensor_logits_kernel", kernel, grid_of<Shape>(args), kThreads, kBytes, stream,
                     args);
}

}  // namespace

void launch_tensor_logits(const LogitsArgs& args, int index, cudaStream_t stream) {
  if (args.num_tokens == 0) {
    return;
  }
  const dim3 large = grid_of<LargeTile>(args);
  const bool fills = static_cast<int>(large.x * large.y * large.z) >= cuda::num_sms(index);
  const auto run = fills ? launch<LargeTile> : launch<SmallTile>;
  run(args, index, stream);
}

}  // namespace moebius::router
