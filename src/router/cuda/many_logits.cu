// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Logits of any operands in the order of sums that router/logit_sum.h states, at the rate of
// multiply-adds (226 us for 4096 tokens of 7168 and 256 experts on an H200 at 1.98 GHz).  A lane
// has 8 tokens and 8 experts and both chains of each, so 4 loads of 16 bytes feed 64 multiply-adds.
// A warp has 32 tokens and 64 experts.  Up to 4 warps lie along the tokens; such groups of warps
// take blocks of depth in turn, so that tiles are small when tokens are few.  After a round of
// blocks the groups exchange their sums through shared memory.  Each group adds the sums of its
// share of the tile in order; it does so half a block later, when all groups have written theirs.
#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/floats.cuh"
#include "core/cuda/ftz.cuh"
#include "router/cuda/logits.h"
#include "router/logit_sum.h"

namespace moebius::router {

namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kLaneTokens = 8;
constexpr int kLaneExperts = 8;
constexpr int kDown = 4;  // a warp has 4 lanes along tokens and 8 along experts
constexpr int kAcross = 8;
constexpr int kQuad = 4;  // rows that one load brings
constexpr int kWarpTokens = kDown * kLaneTokens;
constexpr int kExperts = kAcross * kLaneExperts;  // per CTA
constexpr int kBlockDepth = static_cast<int>(kDepthBlock);
constexpr int kStepDepth = kBlockDepth / 2;  // shared memory holds half of each group's block
constexpr int kPartsPerRow = kStepDepth / cuda::kVector;
constexpr int kRowsPerPass = kThreads / kPartsPerRow;  // each thread loads one part
constexpr int kStoreAt = kStepDepth / 2;  // h of a step at which the next operands are stored
constexpr int kLaneQuads = kLaneTokens * kLaneExperts / kQuad;

// A tile of kWarps warps along the tokens.
template <int kWarps>
struct Tile {
  static constexpr int kTokens = kWarps * kWarpTokens;
  static constexpr int kGroups = kThreads / kWarp / kWarps;
  static constexpr int kGroupThreads = kThreads / kGroups;
  static constexpr int kRows = kTokens + kExperts;  // operand rows: tokens, then experts
  static constexpr int kTokenPasses = kGroups * kTokens / kRowsPerPass;
  static constexpr int kExpertPasses = kGroups * kExperts / kRowsPerPass;
  static constexpr int kShareTokens = kLaneTokens / kGroups;  // a lane's tokens that its group adds

  // Widened operands of half a block, [h][row].  Why there is a gap between parts: neighbouring
  // threads hold neighbouring parts of a row, and they should store to different banks.
  struct Operands {
    static constexpr int kPartFloats = cuda::kVector * kRows + kStepDepth;
    float values[kPartsPerRow * kPartFloats];
    __device__ __forceinline__ static constexpr int row_of(int h) {
      return h / cuda::kVector * kPartFloats + h % cuda::kVector * kRows;
    }
  };
  struct Shared {
    Operands operands[2][kGroups];
    float4 sums[kLaneQuads][kThreads];  // each lane's sums of a round
  };
  static_assert(sizeof(Shared) <= 227 * 1024);
};

// Stands for operands whose type is known at run time only.
struct AnyFloat {};

// A row of the hidden states or the gate with elements T, read kVector elements at a time.
template <typename T>
class Row {
 public:
  using Part = cuda::Raw8<T>;

  // REQUIRES: aligned rows of T.
  __device__ __forceinline__ Row(
      const void* matrix, DType /*dtype*/, int64_t row, int64_t depth, bool /*is_aligned*/)
      : begin_(static_cast<const T*>(matrix) + row * depth), depth_(depth) {}

  // Past the end of a row it returns zeros, which add nothing to a chain.
  __device__ __forceinline__ Part load(int64_t h) const {
    Part part = {};
    if (h < depth_) {
      part = cuda::load_raw(begin_ + h);
    }
    return part;
  }
  __device__ __forceinline__ void widen(const Part& part, float (&v)[cuda::kVector]) const {
    cuda::widen(part, v);
  }

 private:
  const T* begin_;
  int64_t depth_;
};

template <>
class Row<AnyFloat> {
 public:
  // Elements as they are in memory; elements of two bytes fill half of it.
  struct Part {
    uint4 words[2];
  };

  // With is_aligned, parts may be loaded in units of 16 bytes.
  __device__ __forceinline__ Row(
      const void* matrix, DType dtype, int64_t row, int64_t depth, bool is_aligned)
      : dtype_(dtype), depth_(depth), is_aligned_(is_aligned) {
    const int64_t bytes = dtype == DType::kF32 ? 4 : 2;
    begin_ = static_cast<const char*>(matrix) + row * depth * bytes;
  }

  __device__ __forceinline__ Part load(int64_t h) const {
    const bool is_whole = is_aligned_ && h + cuda::kVector <= depth_;
    Part part;
    if (dtype_ == DType::kF32) {
      const auto* from = reinterpret_cast<const uint32_t*>(begin_) + h;
      if (is_whole) {
        part.words[0] = reinterpret_cast<const uint4*>(from)[0];
        part.words[1] = reinterpret_cast<const uint4*>(from)[1];
      } else {
        part.words[0] = words_of(from, h);
        part.words[1] = words_of(from + 4, h + 4);
      }
    } else {
      const auto* from = reinterpret_cast<const uint16_t*>(begin_) + h;
      part.words[0] = is_whole ? *reinterpret_cast<const uint4*>(from) : pairs_of(from, h);
    }
    return part;
  }

  __device__ __forceinline__ void widen(const Part& part, float (&v)[cuda::kVector]) const {
    if (dtype_ == DType::kBF16) {
      cuda::widen(cuda::Raw8<BFloat16>{{part.words[0]}}, v);
    } else if (dtype_ == DType::kF32) {
      cuda::widen(cuda::Raw8<float>{{part.words[0], part.words[1]}}, v);
    } else {
      cuda::widen(cuda::Raw8<Float16>{{part.words[0]}}, v);
    }
  }

 private:
  __device__ __forceinline__ uint4 words_of(const uint32_t* from, int64_t h) const {
    const auto word = [&](int i) { return h + i < depth_ ? from[i] : 0u; };
    return make_uint4(word(0), word(1), word(2), word(3));
  }
  __device__ __forceinline__ uint4 pairs_of(const uint16_t* from, int64_t h) const {
    const auto half = [&](int i) { return h + i < depth_ ? uint32_t{from[i]} : 0u; };
    const auto pair = [&](int i) { return half(2 * i) | half(2 * i + 1) << 16; };
    return make_uint4(pair(0), pair(1), pair(2), pair(3));
  }

  DType dtype_;
  int64_t depth_;
  bool is_aligned_;
  const char* begin_;
};

// Brings halves of blocks into shared memory in two steps, between which the CTA computes.  Why
// elements stay unconverted in between: a conversion would wait for the load.  A thread has one row
// of tokens and one row of experts, and loads the same part of them for the blocks of some groups.
template <typename Shape, typename T>
class Loader {
 public:
  struct Parts {
    typename Row<T>::Part tokens[Shape::kTokenPasses];
    typename Row<T>::Part experts[Shape::kExpertPasses];
  };

  // A row past the end is replaced by the last row.
  __device__ __forceinline__ Loader(const LogitsArgs& a,
                                    bool is_aligned,
                                    int64_t first_token,
                                    int64_t first_expert)
      : row_(static_cast<int>(threadIdx.x) / kPartsPerRow),
        part_(static_cast<int>(threadIdx.x) % kPartsPerRow * cuda::kVector),
        token_(a.hidden,
               a.hidden_dtype,
               min(first_token + row_ % Shape::kTokens, a.num_tokens - 1),
               a.depth,
               is_aligned),
        expert_(a.gate,
                a.gate_dtype,
                min(first_expert + row_ % kExperts, a.num_experts - 1),
                a.depth,
                is_aligned) {}

  // h is where the first group's half begins.
  __device__ __forceinline__ void load(int64_t h, Parts& parts) const {
#pragma unroll
    for (int i = 0; i < Shape::kTokenPasses; ++i) {
      parts.tokens[i] = token_.load(h + token_group(i) * kBlockDepth + part_);
    }
#pragma unroll
    for (int i = 0; i < Shape::kExpertPasses; ++i) {
      parts.experts[i] = expert_.load(h + expert_group(i) * kBlockDepth + part_);
    }
  }

  __device__ __forceinline__ void store(const Parts& parts,
                                        typename Shape::Operands (&to)[Shape::kGroups]) const {
#pragma unroll
    for (int i = 0; i < Shape::kTokenPasses; ++i) {
      store_part(token_, parts.tokens[i], row_ % Shape::kTokens, to[token_group(i)]);
    }
#pragma unroll
    for (int i = 0; i < Shape::kExpertPasses; ++i) {
      store_part(expert_, parts.experts[i], Shape::kTokens + row_ % kExperts, to[expert_group(i)]);
    }
  }

 private:
  __device__ __forceinline__ int token_group(int i) const {
    return row_ / Shape::kTokens + i * (kRowsPerPass / Shape::kTokens);
  }
  __device__ __forceinline__ int expert_group(int i) const {
    return row_ / kExperts + i * (kRowsPerPass / kExperts);
  }
  __device__ __forceinline__ void store_part(const Row<T>& row,
                                             const typename Row<T>::Part& part,
                                             int at,
                                             typename Shape::Operands& to) const {
    float v[cuda::kVector];
    row.widen(part, v);
    float* column = to.values + Shape::Operands::row_of(part_) + at;
#pragma unroll
    for (int i = 0; i < cuda::kVector; ++i) {
      column[i * Shape::kRows] = v[i];
    }
  }

  int row_;
  int part_;
  Row<T> token_;
  Row<T> expert_;
};

using Chains = float[2][kLaneTokens][kLaneExperts];

// The row of a lane's element i: quads of neighbouring rows go to the lanes in turn.
__device__ __forceinline__ constexpr int row_in_warp(int i, int lane, int num_lanes) {
  return i / kQuad * kQuad * num_lanes + lane * kQuad + i % kQuad;
}

template <int kLanes, int kCount>
__device__ __forceinline__ void load_quads(const float* from, float (&to)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += kQuad) {
    const float4 v = *reinterpret_cast<const float4*>(from + row_in_warp(i, 0, kLanes));
    to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
  }
}

// Reads a lane's operands of half a block one h at a time, one h ahead of their use.
template <typename Shape>
class Walk {
 public:
  // x_row and w_row are the rows of the lane's first token and first expert.
  __device__ __forceinline__ Walk(const typename Shape::Operands& operands, int x_row, int w_row)
      : x_values_(operands.values + x_row), w_values_(operands.values + w_row) {
    load(0);
  }

  // Extends the chains by elements [kBegin, kEnd).  With kIsFirst the first two begin new chains.
  template <int kBegin, int kEnd, bool kIsFirst>
  __device__ __forceinline__ void extend(Chains& chains) {
#pragma unroll
    for (int h = kBegin; h < kEnd; ++h) {
      if (h + 1 < kStepDepth) {
        load(h + 1);
      }
#pragma unroll
      for (int t = 0; t < kLaneTokens; ++t) {
#pragma unroll
        for (int e = 0; e < kLaneExperts; ++e) {
          float& chain = chains[h % 2][t][e];
          chain = cuda::fma_ftz(x_[h % 2][t], w_[h % 2][e], kIsFirst && h < 2 ? 0.0f : chain);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ void load(int h) {
    load_quads<kDown>(x_values_ + Shape::Operands::row_of(h), x_[h % 2]);
    load_quads<kAcross>(w_values_ + Shape::Operands::row_of(h), w_[h % 2]);
  }

  const float* x_values_;
  const float* w_values_;
  float x_[2][kLaneTokens];
  float w_[2][kLaneExperts];
};

template <int kWarps, typename T>
__global__ void __launch_bounds__(kThreads, 1)
    many_logits_kernel(const __grid_constant__ LogitsArgs a, bool is_aligned) {
  using Shape = Tile<kWarps>;
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(memory);
  const int64_t first_token = int64_t{blockIdx.x} * Shape::kTokens;
  const int64_t first_expert = int64_t{blockIdx.y} * kExperts;
  const Loader<Shape, T> loader(a, is_aligned, first_token, first_expert);
  const int group = static_cast<int>(threadIdx.x) / Shape::kGroupThreads;
  const int in_group = static_cast<int>(threadIdx.x) % Shape::kGroupThreads;
  const int lane = in_group % kWarp;
  const int warp_token = in_group / kWarp * kWarpTokens;
  // Bit 0 and bit 4 of the lane choose tokens, the others experts: the order that loaded fastest of
  // all that were tried.
  const int down = lane / 16 * 2 + lane % 2;
  const int across = lane / 2 % kAcross;
  const int x_row = warp_token + row_in_warp(0, down, kDown);
  const int w_row = Shape::kTokens + row_in_warp(0, across, kAcross);

  float totals[Shape::kShareTokens][kLaneExperts] = {};
  const auto add_sums = [&] {
#pragma unroll
    for (int from = 0; from < Shape::kGroups; ++from) {
#pragma unroll
      for (int t = 0; t < Shape::kShareTokens; ++t) {
#pragma unroll
        for (int e = 0; e < kLaneExperts; e += kQuad) {
          const int q = (group * Shape::kShareTokens + t) * (kLaneExperts / kQuad) + e / kQuad;
          const float4 v = shared.sums[q][from * Shape::kGroupThreads + in_group];
          totals[t][e] = cuda::add_ftz(totals[t][e], v.x);
          totals[t][e + 1] = cuda::add_ftz(totals[t][e + 1], v.y);
          totals[t][e + 2] = cuda::add_ftz(totals[t][e + 2], v.z);
          totals[t][e + 3] = cuda::add_ftz(totals[t][e + 3], v.w);
        }
      }
    }
  };

  // Operands are loaded two halves ahead and stored one ahead.
  constexpr int64_t kRoundDepth = Shape::kGroups * kBlockDepth;
  typename Loader<Shape, T>::Parts parts;
  loader.load(0, parts);
  loader.store(parts, shared.operands[0]);
  loader.load(kStepDepth, parts);
#pragma unroll
  for (int q = 0; q < kLaneQuads; ++q) {
    shared.sums[q][threadIdx.x] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  __syncthreads();
  for (int64_t begin = 0; begin < a.depth; begin += kRoundDepth) {
    Chains chains;
    {
      Walk<Shape> walk(shared.operands[0][group], x_row, w_row);
      walk.template extend<0, kStoreAt, true>(chains);
      add_sums();  // the last round's sums are there, and a barrier precedes the next ones
      loader.store(parts, shared.operands[1]);
      loader.load(begin + kRoundDepth, parts);
      walk.template extend<kStoreAt, kStepDepth, false>(chains);
      __syncthreads();
    }
    Walk<Shape> walk(shared.operands[1][group], x_row, w_row);
    walk.template extend<0, kStoreAt, false>(chains);
    loader.store(parts, shared.operands[0]);
    loader.load(begin + kRoundDepth + kStepDepth, parts);
    walk.template extend<kStoreAt, kStepDepth, false>(chains);
#pragma unroll
    for (int q = 0; q < kLaneQuads; ++q) {
      float v[kQuad];
#pragma unroll
      for (int i = 0; i < kQuad; ++i) {
        const int t = q * kQuad / kLaneExperts;
        const int e = q * kQuad % kLaneExperts + i;
        v[i] = cuda::add_ftz(chains[0][t][e], chains[1][t][e]);
      }
      shared.sums[q][threadIdx.x] = make_float4(v[0], v[1], v[2], v[3]);
    }
    __syncthreads();
  }
  add_sums();
#pragma unroll
  for (int t = 0; t < Shape::kShareTokens; ++t) {
    const int64_t token =
        first_token + warp_token + row_in_warp(group * Shape::kShareTokens + t, down, kDown);
#pragma unroll
    for (int e = 0; e < kLaneExperts; ++e) {
      const int64_t expert = first_expert + row_in_warp(e, across, kAcross);
      if (token < a.num_tokens && expert < a.num_experts) {
        a.out[token * a.num_experts + expert] = totals[t][e] + a.bias[expert];
      }
    }
  }
}

template <int kWarps, typename T>
void launch_for(const LogitsArgs& args, int index, cudaStream_t stream) {
  using Shape = Tile<kWarps>;
  const auto kernel = many_logits_kernel<kWarps, T>;
  constexpr auto kBytes = sizeof(typename Shape::Shared);
  cuda::allow_shared_bytes(index, reinterpret_cast<const void*>(kernel), kBytes);
  const dim3 grid(static_cast<unsigned>((args.num_tokens + Shape::kTokens - 1) / Shape::kTokens),
                  static_cast<unsigned>((args.num_experts + kExperts - 1) / kExperts));
  kernel<<<grid, kThreads, kBytes, stream>>>(args, has_aligned_rows(args));
  cuda::check_launch("many_logits_kernel");
}

template <int kWarps>
void launch(const LogitsArgs& args, int index, cudaStream_t stream) {
  const bool is_bf16 = args.hidden_dtype == DType::kBF16 && args.gate_dtype == DType::kBF16;
  const auto run = is_bf16 && has_aligned_rows(args) ? launch_for<kWarps, BFloat16>
                                                     : launch_for<kWarps, AnyFloat>;
  run(args, index, stream);
}

// The time in units of one warp's tile when every SM has one CTA.
int64_t time_of(const LogitsArgs& args, int64_t num_warps, int64_t num_sms) {
  const int64_t down = (args.num_tokens + num_warps * kWarpTokens - 1) / (num_warps * kWarpTokens);
  const int64_t across = (args.num_experts + kExperts - 1) / kExperts;
  return (down * across + num_sms - 1) / num_sms * num_warps;
}

}  // namespace

void launch_many_logits(const LogitsArgs& args, int index, cudaStream_t stream) {
  const int64_t sms = cuda::num_sms(index);
  const int64_t four = time_of(args, 4, sms);
  const int64_t two = time_of(args, 2, sms);
  const int64_t one = time_of(args, 1, sms);
  // When times are equal, larger tiles win because they load fewer operands.
  const auto run = four <= two && four <= one ? launch<4> : two <= one ? launch<2> : launch<1>;
  run(args, index, stream);
}

}  // namespace moebius::router
