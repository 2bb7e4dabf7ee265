// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Scoring functions and the weights of the chosen experts.  All CPU implementations share this part
// of RouterConfig's steps; src/router/cpu repeats its arithmetic in SIMD, and src/router/cuda on a
// GPU.
//
// The functions add, multiply, divide and take square roots in a stated order, so that vector and
// GPU versions give the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "moebius/router.h"

namespace moebius::router {

// Softmax sums e^(x - max) in kSumLanes interleaved partial sums, which are then added in halves:
// partial[i] += partial[i + 8] for i < 8, then + 4, + 2, + 1.
inline constexpr int kSumLanes = 16;

// Scores s[0, n) in place.  Softmax gives NaN everywhere for a row with NaN or +inf, or with -inf
// only.
void score(Scoring scoring, float* s, int64_t n);

// Steps 5 to 8: computes weights[0, K) of experts ids[0, K).  The first num_eligible experts were
// eligible; the others get weight 0.  s[0, E) holds scores, or logits with score_after_topk.
// expert_scale is empty or [E].
void weigh(const RouterConfig& config,
           std::span<const float> expert_scale,
           const float* s,
           const int32_t* ids,
           int64_t num_eligible,
           float* weights);

// All steps of Scoring::kSparseMixer for one row of logits [E].
void mix_sparsely(const RouterConfig& config,
                  std::span<const float> expert_scale,
                  const float* logits,
                  int32_t* ids,
                  float* weights);

// Slots [found, K) take the lowest ids not among the first `found`.
void append_unused(int64_t found, int64_t topk, int32_t* ids);

// Fills a row without an eligible group: ids 0..K-1 with weight 1/K.
void weigh_evenly(int64_t topk, int32_t* ids, float* weights);

}  // namespace moebius::router
