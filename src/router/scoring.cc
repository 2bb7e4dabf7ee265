// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "router/scoring.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "router/exp.h"

namespace moebius::router {

namespace {

float sqrt_softplus(float x) {
  return std::sqrt(softplus(x));
}

void softmax(float* s, int64_t n) {
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    max = s[i] > max ? s[i] : max;
  }
  float partial[kSumLanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    // inf - inf is NaN, which the sum carries to every score.
    s[i] = exp_nonpositive(s[i] - max);
    partial[i % kSumLanes] += s[i];
  }
  for (int half = kSumLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      partial[i] += partial[i + half];
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    s[i] /= partial[0];
  }
}

}  // namespace

void score(Scoring scoring, float* s, int64_t n) {
  switch (scoring) {
    case Scoring::kSoftmax:
      softmax(s, n);
      break;
    case Scoring::kSigmoid:
      std::transform(s, s + n, s, sigmoid);
      break;
    case Scoring::kSqrtSoftplus:
      std::transform(s, s + n, s, sqrt_softplus);
      break;
    case Scoring::kSparseMixer:  // mix_sparsely() scores
      break;
  }
}

namespace {

// Steps 6 to 8, on the weights of the first num_eligible experts.
void scale_weights(const RouterConfig& config,
                   std::span<const float> expert_scale,
                   const int32_t* ids,
                   int64_t num_eligible,
                   float* weights) {
  float factor = config.routed_scaling_factor;
  float sum = 1.0f;
  if (config.renormalize) {
    sum = 0.0f;
    for (int64_t k = 0; k < num_eligible; ++k) {
      sum += weights[k];
    }
    // Why a floor and not sum + 1e-20: with a floor, every larger sum gives the plain quotient.
    // The two differ only for sums below 1e-12, where adding 1e-20 changes an f32.
    sum = std::max(sum, 1e-20f);
  }
  for (int64_t k = 0; k < num_eligible; ++k) {
    weights[k] = weights[k] / sum * factor;
    if (!expert_scale.empty()) {
      weights[k] *= expert_scale[static_cast<size_t>(ids[k])];
    }
  }
}

}  // namespace

void weigh(const RouterConfig& config,
           std::span<const float> expert_scale,
           const float* s,
           const int32_t* ids,
           int64_t num_eligible,
           float* weights) {
  std::transform(ids, ids + num_eligible, weights, [s](int32_t id) { return s[id]; });
  std::fill(weights + num_eligible, weights + config.topk, 0.0f);
  if (config.score_after_topk) {
    score(config.scoring, weights, num_eligible);
  }
  scale_weights(config, expert_scale, ids, num_eligible, weights);
}

void mix_sparsely(const RouterConfig& config,
                  std::span<const float> expert_scale,
                  const float* logits,
                  int32_t* ids,
                  float* weights) {
  constexpr float kNegInf = -std::numeric_limits<float>::infinity();
  std::vector<float> open(logits, logits + config.num_experts);
  std::replace_if(
      open.begin(), open.end(), [](float x) { return x != x; }, kNegInf);
  std::vector<float> near(open.size());
  int64_t found = 0;
  for (; found < config.topk; ++found) {
    const auto best = std::max_element(open.begin(), open.end());
    const float most = *best;
    if (most == kNegInf || (found == 0 && !std::isfinite(most))) {
      break;
    }
    std::transform(open.begin(), open.end(), near.begin(), [&](float x) {
      const float scale = std::fabs(x) > most ? std::fabs(x) : most;
      return (most - x) / scale > 2.0f * config.mixer_epsilon ? kNegInf : x;
    });
    softmax(near.data(), config.num_experts);
    ids[found] = static_cast<int32_t>(best - open.begin());
    weights[found] = near[static_cast<size_t>(ids[found])];
    *best = kNegInf;
  }
  if (found == 0) {
    weigh_evenly(config.topk, ids, weights);
    return;
  }
  std::fill(weights + found, weights + config.topk, 0.0f);
  append_unused(found, config.topk, ids);
  scale_weights(config, expert_scale, ids, found, weights);
}

void append_unused(int64_t found, int64_t topk, int32_t* ids) {
  for (int32_t id = 0; found < topk; ++id) {
    if (std::find(ids, ids + found, id) == ids + found) {
      ids[found++] = id;
    }
  }
}

void weigh_evenly(int64_t topk, int32_t* ids, float* weights) {
  for (int64_t k = 0; k < topk; ++k) {
    ids[k] = static_cast<int32_t>(k);
    weights[k] = 1.0f / static_cast<float>(topk);
  }
}

}  // namespace moebius::router
