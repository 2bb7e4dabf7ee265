// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Logits of many tokens: a CTA sums a tile of them over all of the depth, block by block, with
// operands in shared memory, widened to f32 and laid out [h][row]; a lane has 8 tokens and 4
// experts, which is 3 loads of 16 bytes for 32 multiply-adds.  What would limit is multiply-adds:
// 254 us for 4096 tokens of 7168 and 256 experts on an H200.
#include "core/cuda/check.h"
#include "core/cuda/floats.cuh"
#include "core/cuda/ftz.cuh"
#include "router/cuda/kernels.h"
#include "router/ref/ref.h"

namespace moebius::router {

namespace {

constexpr int kDepth = static_cast<int>(kDepthBlock);

constexpr int kPartsPerRow = kDepth / cuda::kVector;

// Of a CTA.
constexpr int kTokens = 128;
constexpr int kExperts = 64;
constexpr int kLaneTokens = 8;
constexpr int kLaneExperts = 4;
constexpr int kThreads = kTokens * kExperts / (kLaneTokens * kLaneExperts);
constexpr int kRows = kTokens + kExperts;  // of operands: tokens, then experts
constexpr int kPartsPerThread = kRows * kPartsPerRow / kThreads;
static_assert(kRows * kPartsPerRow % kThreads == 0);

// Element h of a row lies at [h][column(row, h)].  Why so: lanes that load neighbouring parts of a
// row, as global memory wants it, store to different banks.
struct DepthBlock {
  float values[kDepth][kRows];
};
__device__ __forceinline__ int column(int row, int h) {
  return row ^ (h / cuda::kVector * 8);
}

// kVector elements of a row as they lie in memory; of two bytes each they fill half of it.
struct RawPart {
  uint4 words[2];
};

// Brings blocks of depth into shared memory, kVector elements of a row at a time, in two steps
// between which the CTA computes.  Why raw in between: a conversion would wait for the load.
class BlockLoader {
 public:
  using Parts = RawPart[kPartsPerThread];

  // is_aligned: parts may be loaded by 16 bytes.
  __device__ __forceinline__ BlockLoader(const LogitsArgs& args, bool is_aligned)
      : args_(args),
        is_aligned_(is_aligned),
        first_token_(int64_t{blockIdx.y} * kTokens),
        first_expert_(int64_t{blockIdx.z} * kExperts) {}

  __device__ __forceinline__ void load(int64_t block, Parts& parts) const {
#pragma unroll
    for (int i = 0; i < kPartsPerThread; ++i) {
      const Place place(i);
      const int64_t h = block * kDepth + place.h;
      // Rows past the end repeat the last one.
      if (place.is_token()) {
        const int64_t token = min(first_token_ + place.row, args_.num_tokens - 1);
        load_part(args_.hidden, args_.hidden_dtype, token, h, parts[i]);
      } else {
        const int64_t expert = min(first_expert_ + place.row - kTokens, args_.num_experts - 1);
        load_part(args_.gate, args_.gate_dtype, expert, h, parts[i]);
      }
    }
  }

  __device__ __forceinline__ void store(const Parts& parts, DepthBlock& block) const {
#pragma unroll
    for (int i = 0; i < kPartsPerThread; ++i) {
      const Place place(i);
      float v[cuda::kVector];
      widen_part(parts[i], place.is_token() ? args_.hidden_dtype : args_.gate_dtype, v);
      const int to = column(place.row, place.h);
#pragma unroll
      for (int j = 0; j < cuda::kVector; ++j) {
        block.values[place.h + j][to] = v[j];
      }
    }
  }

 private:
  // Of a thread's i-th part.
  struct Place {
    int row;
    int h;
    __device__ __forceinline__ explicit Place(int i) {
      const int part = static_cast<int>(threadIdx.x) + i * kThreads;
      row = part / kPartsPerRow;
      h = part % kPartsPerRow * cuda::kVector;
    }
    __device__ __forceinline__ bool is_token() const { return row < kTokens; }
  };

  __device__ __forceinline__ void load_part(
      const void* matrix, DType dtype, int64_t row, int64_t h, RawPart& part) const {
    const int64_t begin = row * args_.depth + h;
    const bool is_whole = is_aligned_ && h + cuda::kVector <= args_.depth;
    if (dtype == DType::kF32) {
      const auto* from = static_cast<const uint32_t*>(matrix) + begin;
      if (is_whole) {
        part.words[0] = reinterpret_cast<const uint4*>(from)[0];
        part.words[1] = reinterpret_cast<const uint4*>(from)[1];
      } else {
        part.words[0] = words_of(from, h);
        part.words[1] = words_of(from + 4, h + 4);
      }
    } else {
      const auto* from = static_cast<const uint16_t*>(matrix) + begin;
      part.words[0] = is_whole ? *reinterpret_cast<const uint4*>(from) : pairs_of(from, h);
    }
  }

  // Zeros past the end of a row, which add nothing to a chain.
  __device__ __forceinline__ uint4 words_of(const uint32_t* from, int64_t h) const {
    const auto word = [&](int i) { return h + i < args_.depth ? from[i] : 0u; };
    return make_uint4(word(0), word(1), word(2), word(3));
  }
  __device__ __forceinline__ uint4 pairs_of(const uint16_t* from, int64_t h) const {
    const auto half = [&](int i) { return h + i < args_.depth ? uint32_t{from[i]} : 0u; };
    const auto pair = [&](int i) { return half(2 * i) | half(2 * i + 1) << 16; };
    return make_uint4(pair(0), pair(1), pair(2), pair(3));
  }

  __device__ __forceinline__ static void widen_part(const RawPart& part,
                                                    DType dtype,
                                                    float (&v)[cuda::kVector]) {
    if (dtype == DType::kBF16) {
      cuda::widen(cuda::Raw8<BFloat16>{{part.words[0]}}, v);
    } else if (dtype == DType::kF32) {
      cuda::widen(cuda::Raw8<float>{{part.words[0], part.words[1]}}, v);
    } else {
      cuda::widen(cuda::Raw8<Float16>{{part.words[0]}}, v);
    }
  }

  const LogitsArgs& args_;
  bool is_aligned_;
  int64_t first_token_;
  int64_t first_expert_;
};

// A thread's logits within the tile.  Those of neighbours along a dimension are neighbours, in
// groups of what one load brings.
class Lane {
 public:
  static constexpr int kTokenGroup = kLaneTokens < 4 ? kLaneTokens : 4;
  static constexpr int kExpertGroup = kLaneExperts < 4 ? kLaneExperts : 4;
  static constexpr int kAcross = kExperts / kLaneExperts;
  static constexpr int kDown = kTokens / kLaneTokens;

  __device__ __forceinline__ Lane()
      : down_(static_cast<int>(threadIdx.x) / kAcross),
        across_(static_cast<int>(threadIdx.x) % kAcross) {}

  __device__ __forceinline__ int token(int t) const {
    return t / kTokenGroup * kTokenGroup * kDown + down_ * kTokenGroup + t % kTokenGroup;
  }
  __device__ __forceinline__ int expert(int e) const {
    return e / kExpertGroup * kExpertGroup * kAcross + across_ * kExpertGroup + e % kExpertGroup;
  }

  // done(t, e, sum of the block's two chains) for each of the thread's logits.
  template <typename Fn>
  __device__ __forceinline__ void for_each_sum(const DepthBlock& block, Fn&& done) const {
    float chains[2][kLaneTokens][kLaneExperts] = {};
#pragma unroll 4  // of one part: the columns stay
    for (int h = 0; h < kDepth; h += 2) {
#pragma unroll
      for (int parity = 0; parity < 2; ++parity) {
        const float* row = block.values[h + parity];
        float x[kLaneTokens];
        float w[kLaneExperts];
        read<kTokenGroup>(row, h, token(0), kTokenGroup * kDown, x);
        read<kExpertGroup>(row, h, kTokens + expert(0), kExpertGroup * kAcross, w);
#pragma unroll
        for (int t = 0; t < kLaneTokens; ++t) {
#pragma unroll
          for (int e = 0; e < kLaneExperts; ++e) {
            chains[parity][t][e] = cuda::fma_ftz(x[t], w[e], chains[parity][t][e]);
          }
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kLaneTokens; ++t) {
#pragma unroll
      for (int e = 0; e < kLaneExperts; ++e) {
        done(t, e, cuda::add_ftz(chains[0][t][e], chains[1][t][e]));
      }
    }
  }

 private:
  // Element h of groups of kGroup rows, `stride` apart.
  template <int kGroup, int kCount>
  __device__ __forceinline__ static void read(
      const float* values, int h, int row, int stride, float (&to)[kCount]) {
    static_assert(kCount % kGroup == 0);
#pragma unroll
    for (int i = 0; i < kCount; i += kGroup) {
      const float* group = values + column(row + i / kGroup * stride, h);
      if constexpr (kGroup == 4) {
        const float4 v = *reinterpret_cast<const float4*>(group);
        to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
      } else if constexpr (kGroup == 2) {
        const float2 v = *reinterpret_cast<const float2*>(group);
        to[i] = v.x, to[i + 1] = v.y;
      } else {
        to[i] = *group;
      }
    }
  }

  int down_;
  int across_;
};

__global__ void __launch_bounds__(kThreads)
    many_logits_kernel(const __grid_constant__ LogitsArgs a, bool is_aligned) {
  __shared__ DepthBlock blocks[2];
  const BlockLoader loader(a, is_aligned);
  const Lane lane;
  float totals[kLaneTokens][kLaneExperts] = {};
  BlockLoader::Parts parts;
  const int num_blocks = static_cast<int>((a.depth + kDepth - 1) / kDepth);
  loader.load(0, parts);
  for (int b = 0; b < num_blocks; ++b) {
    DepthBlock& block = blocks[b % 2];
    loader.store(parts, block);
    __syncthreads();  // also: everybody is done with the other block
    if (b + 1 < num_blocks) {
      loader.load(b + 1, parts);
    }
    lane.for_each_sum(
        block, [&](int t, int e, float sum) { totals[t][e] = cuda::add_ftz(totals[t][e], sum); });
  }
#pragma unroll
  for (int t = 0; t < kLaneTokens; ++t) {
#pragma unroll
    for (int e = 0; e < kLaneExperts; ++e) {
      const int64_t token = int64_t{blockIdx.y} * kTokens + lane.token(t);
      const int64_t expert = int64_t{blockIdx.z} * kExperts + lane.expert(e);
      if (token < a.num_tokens && expert < a.num_experts) {
        a.out[token * a.num_experts + expert] = totals[t][e] + a.bias[expert];
      }
    }
  }
}

}  // namespace

void launch_many_logits(const LogitsArgs& args, bool is_aligned, cudaStream_t stream) {
  const dim3 grid(1, static_cast<unsigned>((args.num_tokens + kTokens - 1) / kTokens),
                  static_cast<unsigned>((args.num_experts + kExperts - 1) / kExperts));
  many_logits_kernel<<<grid, kThreads, 0, stream>>>(args, is_aligned);
  cuda::check_launch("many_logits_kernel");
}

}  // namespace moebius::router
