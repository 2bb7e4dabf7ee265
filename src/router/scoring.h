// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Scoring functions, and the weights of the chosen experts: the part of RouterConfig's steps that
// every CPU implementation shares, and the arithmetic that src/router/cpu repeats in SIMD and
// src/router/cuda on a GPU.
//
// Everything here is adds, multiplies, divides and square roots in a stated order, so that vector
// and GPU versions give the same bits.
#pragma once

#include <cstdint>

#include "moebius/router.h"

namespace moebius::router {

// Softmax sums e^(x - max) in kSumLanes interleaved partial sums, which are then added in halves:
// partial[i] += partial[i + 8] for i < 8, then + 4, + 2, + 1.
inline constexpr int kSumLanes = 16;

// In place over s[0, n).  Softmax of a row with NaN, +inf or nothing but -inf is NaN throughout.
void score(Scoring scoring, float* s, int64_t n);

// Steps 5 to 7: weights[0, K) of experts ids[0, K), of which the first num_eligible were eligible;
// the others weigh 0.  s[0, E) holds the scores, or the logits with score_after_topk.
void weigh(const RouterConfig& config,
           const float* s,
           const int32_t* ids,
           int64_t num_eligible,
           float* weights);

// The row that has nothing to choose from: ids 0..K-1 with weight 1/K.
void weigh_evenly(int64_t topk, int32_t* ids, float* weights);

}  // namespace moebius::router
