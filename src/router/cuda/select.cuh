// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One warp per token does RouterConfig's steps.  Lane l holds experts l, l + 32, ...  Two
// warp-wide integer reductions find the best expert of a step, on keys that have the order of the
// scores.
#pragma once

#include <cstdint>

#include "router/cuda/select.h"
#include "router/exp.h"
#include "router/scoring.h"

namespace moebius::router {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAll = 0xffffffffu;
inline constexpr unsigned kNegInfKey = 0x007fffffu;
inline constexpr unsigned kInfKey = 0xff800000u;

// Keys have the order of the floats.  REQUIRES: c is neither NaN nor -0.
__device__ __forceinline__ unsigned key_of(float c) {
  const unsigned bits = __float_as_uint(c);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float neg_inf() {
  return __uint_as_float(0xff800000u);
}

__device__ __forceinline__ float sqrt_softplus(float x) {
  return sqrtf(softplus(x));
}

__device__ __forceinline__ float warp_max(float v) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    v = fmaxf(v, __shfl_xor_sync(kAll, v, step));
  }
  return v;
}

// Adds kSumLanes partial sums, one in each of the first lanes, in the order of scoring.h.
__device__ __forceinline__ float sum_in_halves(float partial) {
  for (int half = kSumLanes / 2; half > 0; half /= 2) {
    partial += __shfl_down_sync(kAll, partial, half);
  }
  return __shfl_sync(kAll, partial, 0);
}

// The shared memory of one warp, in words.  `spread` holds the choice scores with a gap behind each
// group, so that neighbouring lanes, which read neighbouring groups, use different banks.
struct RowMemory {
  float* scores;       // [E]
  float* spread;       // [E + G], only with groups
  float* group_score;  // [G], only with groups
  unsigned* is_kept;   // [G], only with groups
  int32_t* ids;        // [K]
  float* weights;      // [K]
};

__host__ __device__ constexpr int select_words(int num_experts, int num_groups, int topk) {
  const int of_groups = num_groups > 1 ? num_experts + 3 * num_groups : 0;
  return num_experts + of_groups + 2 * topk;
}

__device__ __forceinline__ RowMemory shared_of(const SelectArgs& a, float* memory) {
  const bool has_groups = a.num_groups > 1;
  RowMemory s;
  s.scores = memory;
  s.spread = s.scores + a.num_experts;
  s.group_score = s.spread + (has_groups ? a.num_experts + a.num_groups : 0);
  s.is_kept = reinterpret_cast<unsigned*>(s.group_score + (has_groups ? a.num_groups : 0));
  s.ids = reinterpret_cast<int32_t*>(s.is_kept + (has_groups ? a.num_groups : 0));
  s.weights = reinterpret_cast<float*>(s.ids + a.topk);
  return s;
}

// Sums the exponentials of experts in the order of scoring.h.
template <int kPerLane>
__device__ __forceinline__ void softmax_row(const SelectArgs& a, int lane, float (&s)[kPerLane]) {
  float max = neg_inf();
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    max = fmaxf(max, s[j]);
  }
  max = warp_max(max);
  // Expert e belongs to partial sum e % kSumLanes, so lanes l and l + kSumLanes take turns.
  float partial = 0.0f;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    s[j] = lane + j * kWarp < a.num_experts ? exp_nonpositive(s[j] - max) : 0.0f;
    partial += s[j];
    partial += __shfl_down_sync(kAll, s[j], kSumLanes);
  }
  const float sum = sum_in_halves(partial);
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    s[j] /= sum;
  }
}

// Step 1.
template <int kPerLane>
__device__ __forceinline__ void score_row(const SelectArgs& a, int lane, float (&s)[kPerLane]) {
  switch (a.scoring) {
    case Scoring::kSigmoid:
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        s[j] = sigmoid(s[j]);
      }
      return;
    case Scoring::kSqrtSoftplus:
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        s[j] = sqrt_softplus(s[j]);
      }
      return;
    case Scoring::kSoftmax:
    case Scoring::kSparseMixer:
      break;
  }
  softmax_row(a, lane, s);
}

// Step 3: experts that may not be chosen get the key of -inf.  Returns false when no group is
// eligible.
// REQUIRES: the choice scores c have no NaN.
template <int kPerLane>
__device__ __forceinline__ bool mask_groups(const SelectArgs& a,
                                            int lane,
                                            const RowMemory& shared,
                                            const float (&c)[kPerLane],
                                            unsigned (&keys)[kPerLane]) {
  const int size = a.num_experts / a.num_groups;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int e = lane + j * kWarp;
    if (e < a.num_experts) {
      shared.spread[e + e / size] = c[j];
    }
  }
  __syncwarp();
  const bool is_sum_of_two = a.correction_bias != nullptr;
  for (int g = lane; g < a.num_groups; g += kWarp) {
    const float* group = shared.spread + g * (size + 1);
    float best = neg_inf();
    float second = neg_inf();
    for (int i = 0; i < size; ++i) {
      second = fmaxf(second, fminf(best, group[i]));
      best = fmaxf(best, group[i]);
    }
    const float total = is_sum_of_two ? best + second : best;
    shared.group_score[g] = isfinite(total) ? total : neg_inf();
  }
  __syncwarp();
  bool any = false;
  for (int g = lane; g < a.num_groups; g += kWarp) {
    const float own = shared.group_score[g];
    int num_better = 0;
    for (int other = 0; other < a.num_groups; ++other) {
      const float score = shared.group_score[other];
      num_better += score > own || (score == own && other < g) ? 1 : 0;
    }
    const bool is_kept = own > neg_inf() && num_better < a.topk_groups;
    shared.is_kept[g] = is_kept ? 1 : 0;
    any = any || is_kept;
  }
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int e = lane + j * kWarp;
    if (e < a.num_experts && shared.is_kept[e / size] == 0) {
      keys[j] = kNegInfKey;
    }
  }
  return __any_sync(kAll, any);
}

// Step 4: stores the best experts in shared.ids and returns how many were eligible.
template <int kPerLane>
__device__ __forceinline__ int choose(const SelectArgs& a,
                                      int lane,
                                      unsigned (&keys)[kPerLane],
                                      const RowMemory& shared) {
  for (int found = 0; found < a.topk; ++found) {
    unsigned own = 0;
    int own_id = 0;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (keys[j] > own) {  // the lowest id among equals wins
        own = keys[j];
        own_id = lane + j * kWarp;
      }
    }
    const unsigned best = __reduce_max_sync(kAll, own);
    // Without groups the row is one group, whose best score must be finite.
    const bool is_eligible = best > kNegInfKey && (found > 0 || a.num_groups > 1 || best < kInfKey);
    if (!is_eligible) {
      return found;
    }
    const auto id = static_cast<int>(
        __reduce_min_sync(kAll, own == best ? static_cast<unsigned>(own_id) : kAll));
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (lane + j * kWarp == id) {
        keys[j] = 0;
      }
    }
    if (lane == 0) {
      shared.ids[found] = id;
    }
  }
  return a.topk;
}

// Slots [found, K) take the lowest ids not among the first `found`.
__device__ __forceinline__ void append_unused(const SelectArgs& a, int found, int32_t* ids) {
  for (int id = 0, filled = found; filled < a.topk; ++id) {
    bool is_used = false;
    for (int k = 0; k < found; ++k) {
      is_used = is_used || ids[k] == id;
    }
    if (!is_used) {
      ids[filled++] = id;
    }
  }
}

// Scores weights[0, n) in place; a lane takes every 32nd.
__device__ __forceinline__ void score_chosen(Scoring scoring, int lane, float* weights, int n) {
  if (scoring != Scoring::kSoftmax) {
    for (int k = lane; k < n; k += kWarp) {
      weights[k] = scoring == Scoring::kSigmoid ? sigmoid(weights[k]) : sqrt_softplus(weights[k]);
    }
    return;
  }
  float max = neg_inf();
  for (int k = lane; k < n; k += kWarp) {
    max = fmaxf(max, weights[k]);
  }
  max = warp_max(max);
  for (int k = lane; k < n; k += kWarp) {
    weights[k] = exp_nonpositive(weights[k] - max);
  }
  __syncwarp();
  float partial = 0.0f;
  if (lane < kSumLanes) {
    for (int k = lane; k < n; k += kSumLanes) {
      partial += weights[k];
    }
  }
  const float sum = sum_in_halves(partial);
  for (int k = lane; k < n; k += kWarp) {
    weights[k] /= sum;
  }
}

// Steps 6 to 8.
__device__ __forceinline__ void scale_weights(const SelectArgs& a,
                                              int lane,
                                              int num_eligible,
                                              const RowMemory& shared) {
  float sum = 1.0f;
  if (a.renormalize) {
    sum = 0.0f;
    for (int k = 0; k < num_eligible; ++k) {
      sum += shared.weights[k];
    }
    sum = sum < 1e-20f ? 1e-20f : sum;
  }
  __syncwarp();
  for (int k = lane; k < a.topk; k += kWarp) {
    shared.weights[k] = k < num_eligible ? shared.weights[k] / sum * a.routed_scaling_factor : 0.0f;
    if (a.expert_scale != nullptr && k < num_eligible) {
      shared.weights[k] *= a.expert_scale[shared.ids[k]];
    }
  }
}

// Steps 5 to 8.
__device__ __forceinline__ void weigh(const SelectArgs& a,
                                      int lane,
                                      int num_eligible,
                                      const RowMemory& shared) {
  for (int k = lane; k < num_eligible; k += kWarp) {
    shared.weights[k] = shared.scores[shared.ids[k]];
  }
  __syncwarp();
  if (a.score_after_topk) {
    score_chosen(a.scoring, lane, shared.weights, num_eligible);
    __syncwarp();
  }
  scale_weights(a, lane, num_eligible, shared);
}

// Fills a row without an eligible expert.
__device__ __forceinline__ void store_evenly(const SelectArgs& a, int lane, int64_t token) {
  for (int k = lane; k < a.topk; k += kWarp) {
    a.ids.set(token * a.topk + k, k);
    a.weights[token * a.topk + k] = 1.0f / static_cast<float>(a.topk);
  }
}

__device__ __forceinline__ void store_row(const SelectArgs& a,
                                          int lane,
                                          int64_t token,
                                          const RowMemory& shared) {
  __syncwarp();
  for (int k = lane; k < a.topk; k += kWarp) {
    a.ids.set(token * a.topk + k, shared.ids[k]);
    a.weights[token * a.topk + k] = shared.weights[k];
  }
}

// Every scoring but kSparseMixer.
template <int kPerLane>
__device__ __forceinline__ void select_row(const SelectArgs& a,
                                           int lane,
                                           int64_t token,
                                           float* memory) {
  const RowMemory shared = shared_of(a, memory);
  float s[kPerLane];
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int e = lane + j * kWarp;
    s[j] = e < a.num_experts ? a.logits[token * a.num_experts + e] : neg_inf();
  }
  if (!a.score_after_topk) {
    score_row(a, lane, s);
  }
  float c[kPerLane];
  unsigned keys[kPerLane];
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int e = lane + j * kWarp;
    keys[j] = 0;
    if (e < a.num_experts) {
      shared.scores[e] = s[j];
      // Adding 0 turns -0 into +0, because the two must have equal keys.
      c[j] = s[j] + (a.correction_bias != nullptr ? a.correction_bias[e] : 0.0f);
      c[j] = c[j] == c[j] ? c[j] + 0.0f : neg_inf();
      keys[j] = key_of(c[j]);
    }
  }
  const bool has_group = a.num_groups == 1 || mask_groups(a, lane, shared, c, keys);
  const int found = has_group ? choose(a, lane, keys, shared) : 0;
  if (found == 0) {
    store_evenly(a, lane, token);
    return;
  }
  if (found < a.topk && lane == 0) {
    append_unused(a, found, shared.ids);
  }
  __syncwarp();
  weigh(a, lane, found, shared);
  store_row(a, lane, token, shared);
}

// Scoring::kSparseMixer, as mix_sparsely() of scoring.h does it.
template <int kPerLane>
__device__ __forceinline__ void mix_row(const SelectArgs& a,
                                        int lane,
                                        int64_t token,
                                        float* memory) {
  const RowMemory shared = shared_of(a, memory);
  float open[kPerLane];  // logits; those of chosen experts and NaN are -inf
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int e = lane + j * kWarp;
    open[j] = e < a.num_experts ? a.logits[token * a.num_experts + e] : neg_inf();
    // Adding 0 turns -0 into +0, because the two must have equal keys.
    open[j] = open[j] == open[j] ? open[j] + 0.0f : neg_inf();
  }
  int found = 0;
  for (; found < a.topk; ++found) {
    float own = neg_inf();
    int own_id = a.num_experts;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (open[j] > own) {  // the lowest id among equals wins
        own = open[j];
        own_id = lane + j * kWarp;
      }
    }
    const float most = warp_max(own);
    if (most == neg_inf() || (found == 0 && !isfinite(most))) {
      break;
    }
    const auto id = static_cast<int>(
        __reduce_min_sync(kAll, own == most ? static_cast<unsigned>(own_id) : kAll));
    float near[kPerLane];
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const float x = open[j];
      const float scale = fabsf(x) > most ? fabsf(x) : most;
      near[j] = (most - x) / scale > 2.0f * a.mixer_epsilon ? neg_inf() : x;
    }
    softmax_row(a, lane, near);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (lane + j * kWarp == id) {
        open[j] = neg_inf();
        shared.ids[found] = id;
        shared.weights[found] = near[j];
      }
    }
  }
  if (found == 0) {
    store_evenly(a, lane, token);
    return;
  }
  __syncwarp();
  if (found < a.topk && lane == 0) {
    append_unused(a, found, shared.ids);
  }
  __syncwarp();
  scale_weights(a, lane, found, shared);
  store_row(a, lane, token, shared);
}

// Chooses the experts of a token, by a warp.  `memory` is shared memory of select_words().
template <int kPerLane, bool kMixes>
__device__ __forceinline__ void choose_row(const SelectArgs& a,
                                           int lane,
                                           int64_t token,
                                           float* memory) {
  if constexpr (kMixes) {
    mix_row<kPerLane>(a, lane, token, memory);
  } else {
    select_row<kPerLane>(a, lane, token, memory);
  }
}

}  // namespace moebius::router
