// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Logits of few tokens, with operands of 16 bits, in the order of sums that router/logit_sum.h
// states.  With few logits per SM, parallelism comes from the depth: a CTA has a small tile of
// logits, a lane computes a piece of the tile for one block of depth, and the CTA works on as many
// blocks at once as it has lanes for.  Asynchronous copies bring operands into shared memory, some
// stages ahead and unconverted.  Then one thread per logit adds the sums of the blocks in order.
// Instructions are the limit: 58 % of them are multiply-adds, and 22 % widen operands.
#include <algorithm>

#include "core/cuda/device.h"
#include "core/cuda/fetch_ahead.cuh"
#include "core/cuda/floats.cuh"
#include "core/cuda/ftz.cuh"
#include "core/cuda/launch.cuh"
#include "core/cuda/mma.cuh"
#include "router/cuda/logits.h"
#include "router/logit_sum.h"

namespace moebius::router {

namespace {

constexpr int kThreads = 256;
constexpr int kBlockDepth = static_cast<int>(kDepthBlock);
constexpr int kUnit = cuda::kVector;  // elements of 16 bytes
constexpr int kBlockUnits = kBlockDepth / kUnit;

// The size of a lane's piece and the number of a tile's lanes, both as tokens x experts.
template <int kLaneT, int kLaneE, int kD, int kA, int kS>
struct Tile {
  static constexpr int kLaneTokens = kLaneT;
  static constexpr int kLaneExperts = kLaneE;
  static constexpr int kDown = kD;
  static constexpr int kAcross = kA;
  static constexpr int kStages = kS;
  static constexpr int kTokens = kLaneTokens * kDown;
  static constexpr int kExperts = kLaneExperts * kAcross;
  static constexpr int kRows = kTokens + kExperts;  // operand rows: tokens, then experts
  static constexpr int kLogits = kTokens * kExperts;
  static constexpr int kLanes = kDown * kAcross;
  static constexpr int kBlocks = kThreads / kLanes;  // per stage
  static constexpr int kDepth = kBlocks * kBlockDepth;
  static constexpr int kUnits = kDepth / kUnit;
  static constexpr int kQuads = kLaneTokens * kLaneExperts / 4;
  static_assert(kLogits <= kThreads && kQuads * 4 == kLaneTokens * kLaneExperts);

  // Eight lanes whose loads are served together have neighbouring rows and blocks, and each of them
  // should read another 16 of 128 bytes.  So rows are two units apart, and the order of units
  // changes from one 128-byte line to the next.
  struct Stage {
    uint4 units[kRows][kUnits + 2];
    __device__ __forceinline__ static int place(int unit) {
      return unit ^ (unit / (2 * kBlockUnits) % kBlockUnits);
    }
  };
  struct Shared {
    Stage stages[kStages];
    // The sums of a stage's blocks.  When one quad of each lane makes fewer than 32 logits, padding
    // moves the next quads to other banks.
    float4 sums[kQuads][kThreads + (kLanes < 8 ? kLanes : 0)];
  };
  static_assert(sizeof(Shared) <= 227 * 1024);
};
using SmallTile = Tile<4, 4, 2, 1, 2>;
using MediumTile = Tile<4, 4, 4, 2, 4>;
using LargeTile = Tile<4, 8, 4, 2, 3>;

// Brings a tile's operands into shared memory.  A thread copies the same units of every row, or of
// every second row and so on.
template <typename Shape, typename T>
class Loader {
 public:
  __device__ __forceinline__ Loader(const LogitsArgs& a, int64_t first_token, int64_t first_expert)
      : depth_(a.depth),
        step_(kRowsAtOnce * a.depth),
        tokens_(static_cast<const T*>(a.hidden) + (first_token + first_row()) * a.depth),
        experts_(static_cast<const T*>(a.gate) + (first_expert + first_row()) * a.depth),
        num_tokens_(static_cast<int>(min(a.num_tokens - first_token, int64_t{Shape::kTokens}))),
        num_experts_(
            static_cast<int>(min(a.num_experts - first_expert, int64_t{Shape::kExperts}))) {}

  // Units past the end of the depth become zeros.  Rows past the end keep what they had, because
  // nothing uses the results.
  __device__ __forceinline__ void load(int64_t h, typename Shape::Stage& stage) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int unit = static_cast<int>(threadIdx.x) % kUnitsAtOnce + pass * kUnitsAtOnce;
      const int64_t at = h + int64_t{unit} * kUnit;
      const bool exists = at < depth_;
      const int place = Shape::Stage::place(unit);
      load_rows<0, Shape::kTokens>(tokens_ + (exists ? at : 0), num_tokens_, exists, place, stage);
      load_rows<Shape::kTokens, Shape::kExperts>(experts_ + (exists ? at : 0), num_experts_, exists,
                                                 place, stage);
    }
  }

 private:
  static constexpr int kUnitsAtOnce = std::min(Shape::kUnits, kThreads);
  static constexpr int kPasses = Shape::kUnits / kUnitsAtOnce;
  static constexpr int kRowsAtOnce = kThreads / kUnitsAtOnce;
  static_assert(Shape::kTokens % kRowsAtOnce == 0 && Shape::kExperts % kRowsAtOnce == 0);
  __device__ __forceinline__ static int first_row() {
    return static_cast<int>(threadIdx.x) / kUnitsAtOnce;
  }

  template <int kBegin, int kCount>
  __device__ __forceinline__ void load_rows(
      const T* from, int num_rows, bool exists, int place, typename Shape::Stage& stage) const {
#pragma unroll
    for (int r = 0; r < kCount; r += kRowsAtOnce) {
      if (first_row() + r < num_rows) {
        ptx::copy_async_16(&stage.units[kBegin + first_row() + r][place], from, exists);
      }
      from += step_;
    }
  }

  int64_t depth_;
  int64_t step_;
  const T* tokens_;
  const T* experts_;
  int num_tokens_;
  int num_experts_;
};

template <typename T>
__device__ __forceinline__ void widen_unit(const uint4& unit, float (&v)[kUnit]) {
  cuda::widen(cuda::Raw8<T>{{unit}}, v);
}

// Fetches the block's share of one of the stages, so that requests are spread over the kernel.
__device__ __forceinline__ void fetch_share(const cuda::FetchAhead& fetch, int stage, int stages) {
  const auto blocks = static_cast<int>(gridDim.x * gridDim.y);
  const auto block = static_cast<int>(blockIdx.x + gridDim.x * blockIdx.y);
  for (int unit = stage * blocks + block; unit < fetch.units; unit += stages * blocks) {
    cuda::fetch_unit(fetch, unit);
  }
}

template <typename Shape, typename T>
__global__ void __launch_bounds__(kThreads, 1)
    few_logits_kernel(const __grid_constant__ LogitsArgs a) {
  constexpr int kT = Shape::kLaneTokens;
  constexpr int kE = Shape::kLaneExperts;
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(memory);
  const int64_t first_token = int64_t{blockIdx.x} * Shape::kTokens;
  const int64_t first_expert = int64_t{blockIdx.y} * Shape::kExperts;
  const Loader<Shape, T> loader(a, first_token, first_expert);
  const int num_stages = static_cast<int>((a.depth + Shape::kDepth - 1) / Shape::kDepth);
  ptx::await_kernel_before();
  ptx::let_next_begin();
#pragma unroll
  for (int s = 0; s + 1 < Shape::kStages; ++s) {
    if (s < num_stages) {
      loader.load(int64_t{s} * Shape::kDepth, shared.stages[s]);
    }
    ptx::copy_async_commit();
  }

  const int lane = static_cast<int>(threadIdx.x) % Shape::kLanes;
  const int down = lane % Shape::kDown;
  const int across = lane / Shape::kDown;
  const int block = static_cast<int>(threadIdx.x) / Shape::kLanes;
  // This thread adds logit `own` of the tile, if it exists: the same element of a quad in the sums
  // of each block.
  const int own = static_cast<int>(threadIdx.x);
  const int own_quad = min(own / (Shape::kLanes * 4), Shape::kQuads - 1);
  const float* own_sums =
      reinterpret_cast<const float*>(shared.sums[own_quad]) + own % (Shape::kLanes * 4);
  float total = 0.0f;
  const auto add_sums = [&] {
#pragma unroll 32
    for (int b = 0; b < Shape::kBlocks; ++b) {
      total = cuda::add_ftz(total, own_sums[b * Shape::kLanes * 4]);
    }
  };

  for (int s = 0; s < num_stages; ++s) {
    ptx::copy_async_wait<Shape::kStages - 2>();
    __syncthreads();  // now the last stage's sums are there, and its operands are not needed
    const int next = s + Shape::kStages - 1;
    if (next < num_stages) {
      loader.load(int64_t{next} * Shape::kDepth, shared.stages[next % Shape::kStages]);
    }
    ptx::copy_async_commit();
    if (a.fetch.units > 0 && threadIdx.x == 0) {
      fetch_share(a.fetch, s, num_stages);
    }
    if (s > 0 && own < Shape::kLogits) {
      add_sums();
    }
    const auto& stage = shared.stages[s % Shape::kStages];
    float chains[kT][kE][2] = {};
#pragma unroll
    for (int part = 0; part < kBlockUnits; ++part) {
      const int place = Shape::Stage::place(block * kBlockUnits + part);
      float x[kT][kUnit];
#pragma unroll
      for (int t = 0; t < kT; ++t) {
        widen_unit<T>(stage.units[t * Shape::kDown + down][place], x[t]);
      }
#pragma unroll
      for (int e = 0; e < kE; ++e) {
        float w[kUnit];
        widen_unit<T>(stage.units[Shape::kTokens + e * Shape::kAcross + across][place], w);
#pragma unroll
        for (int i = 0; i < kUnit; ++i) {
#pragma unroll
          for (int t = 0; t < kT; ++t) {
            chains[t][e][i % 2] = cuda::fma_ftz(x[t][i], w[i], chains[t][e][i % 2]);
          }
        }
      }
    }
    __syncthreads();  // now the last stage's sums have been added
#pragma unroll
    for (int q = 0; q < Shape::kQuads; ++q) {
      float v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto& chain = chains[(q * 4 + i) / kE][(q * 4 + i) % kE];
        v[i] = cuda::add_ftz(chain[0], chain[1]);
      }
      shared.sums[q][threadIdx.x] = make_float4(v[0], v[1], v[2], v[3]);
    }
  }
  __syncthreads();
  if (own < Shape::kLogits) {
    add_sums();
    const int own_lane = own % (Shape::kLanes * 4) / 4;
    const int piece = own_quad * 4 + own % 4;
    const int64_t token = first_token + piece / kE * Shape::kDown + own_lane % Shape::kDown;
    const int64_t expert = first_expert + piece % kE * Shape::kAcross + own_lane / Shape::kDown;
    if (token < a.num_tokens && expert < a.num_experts) {
      a.out[token * a.num_experts + expert] = total + a.bias[expert];
    }
  }
}

template <typename Shape>
dim3 grid_of(const LogitsArgs& args) {
  return {static_cast<unsigned>((args.num_tokens + Shape::kTokens - 1) / Shape::kTokens),
          static_cast<unsigned>((args.num_experts + Shape::kExperts - 1) / Shape::kExperts)};
}

template <typename Shape, typename T>
void launch(const LogitsArgs& args, int index, cudaStream_t stream) {
  const auto kernel = few_logits_kernel<Shape, T>;
  constexpr auto kBytes = sizeof(typename Shape::Shared);
  cuda::allow_shared_bytes(index, reinterpret_cast<const void*>(kernel), kBytes);
  cuda::launch_early("few_logits_kernel", kernel, grid_of<Shape>(args), kThreads, kBytes, stream,
                     args);
}

// Uses the smallest tile with which every SM has at most one CTA.
template <typename T>
void launch_for(const LogitsArgs& args, int index, cudaStream_t stream) {
  const auto fits = [&](dim3 grid) {
    return static_cast<int>(grid.x * grid.y) <= cuda::num_sms(index);
  };
  const auto run = fits(grid_of<SmallTile>(args))    ? launch<SmallTile, T>
                   : fits(grid_of<MediumTile>(args)) ? launch<MediumTile, T>
                                                     : launch<LargeTile, T>;
  run(args, index, stream);
}

}  // namespace

void launch_few_logits(const LogitsArgs& args, int index, cudaStream_t stream) {
  const auto run = args.hidden_dtype == DType::kBF16 ? launch_for<BFloat16> : launch_for<Float16>;
  run(args, index, stream);
}

}  // namespace moebius::router
