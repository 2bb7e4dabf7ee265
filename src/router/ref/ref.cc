// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "router/ref/ref.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "router/logit_sum.h"
#include "router/scoring.h"

namespace moebius::router {

namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// Turns subnormal numbers into zeros.
float flushed(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

// The fused multiply-add of units that flush subnormal results.  These units round to 24 bits
// first, as if exponents had no lower end, and flush a result that is then below FLT_MIN.  So a
// result that equals FLT_MIN only because exponents end there is flushed, too.
float flushed_fma(float a, float b, float c) {
  constexpr float kLeast = std::numeric_limits<float>::min();
  constexpr float kScale = 0x1p24f;
  const float sum = flushed(std::fma(a, b, c));
  const bool is_tiny =
      std::fabs(sum) == kLeast && std::fabs(std::fma(a * kScale, b, c * kScale)) < kLeast * kScale;
  return is_tiny ? std::copysign(0.0f, sum) : sum;
}

class Ref final : public Impl {
 public:
  explicit Ref(const Model& model) : model_(model) {}

  void logits(const Tensor& hidden, const Tensor& out, const Stream&) const override {
    const int64_t depth = hidden.dim(1), num_experts = model_.config.num_experts;
    const Tensor x = convert(hidden, DType::kF32), gate = convert(model_.gate, DType::kF32);
    for (int64_t t = 0; t < hidden.dim(0); ++t) {
      for (int64_t e = 0; e < num_experts; ++e) {
        const float* a = x.data<float>() + t * depth;
        const float* b = gate.data<float>() + e * depth;
        float total = 0.0f;
        for (int64_t begin = 0; begin < depth; begin += kDepthBlock) {
          const int64_t end = std::min(depth, begin + kDepthBlock);
          float chains[2] = {};
          for (int64_t h = begin; h < end; ++h) {
            float& chain = chains[h % 2];
            chain = flushed_fma(flushed(a[h]), flushed(b[h]), chain);
          }
          total = flushed(total + flushed(chains[0] + chains[1]));
        }
        out.data<float>()[t * num_experts + e] = total + model_.bias[static_cast<size_t>(e)];
      }
    }
  }

  void select(const Tensor& logits,
              const Tensor& ids,
              const Tensor& weights,
              const Stream&) const override {
    const int64_t num_experts = model_.config.num_experts, topk = model_.config.topk;
    for (int64_t t = 0; t < logits.dim(0); ++t) {
      select_row(logits.data<float>() + t * num_experts, ids.data<int32_t>() + t * topk,
                 weights.data<float>() + t * topk);
    }
  }

 private:
  void select_row(const float* logits, int32_t* ids, float* weights) const {
    const RouterConfig& config = model_.config;
    if (config.scoring == Scoring::kSparseMixer) {
      mix_sparsely(config, model_.expert_scale, logits, ids, weights);
      return;
    }
    // Steps 1 and 2.
    std::vector<float> s(logits, logits + config.num_experts);
    if (!config.score_after_topk) {
      score(config.scoring, s.data(), config.num_experts);
    }
    std::vector<float> c = s;
    for (size_t e = 0; e < c.size(); ++e) {
      c[e] += model_.correction_bias.empty() ? 0.0f : model_.correction_bias[e];
      if (std::isnan(c[e])) {
        c[e] = kNegInf;
      }
    }
    // Step 3: experts that may not be chosen get -inf.
    const std::vector<bool> kept = kept_groups(c);
    if (std::find(kept.begin(), kept.end(), true) == kept.end()) {
      weigh_evenly(config.topk, ids, weights);
      return;
    }
    for (size_t e = 0; e < c.size(); ++e) {
      if (!kept[e / group_size()]) {
        c[e] = kNegInf;
      }
    }
    // Step 4.
    std::vector<int32_t> order(c.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return c[static_cast<size_t>(a)] > c[static_cast<size_t>(b)];
    });
    std::copy_n(order.begin(), config.topk, ids);
    const auto num_eligible = std::count_if(
        ids, ids + config.topk, [&](int32_t id) { return c[static_cast<size_t>(id)] > kNegInf; });
    // Steps 5 to 8.
    weigh(config, model_.expert_scale, s.data(), ids, num_eligible, weights);
  }

  size_t group_size() const {
    return static_cast<size_t>(model_.config.num_experts / model_.config.num_groups);
  }

  // The topk_groups best groups with a finite score; ties go to the lower group.
  std::vector<bool> kept_groups(const std::vector<float>& c) const {
    const auto num_groups = static_cast<size_t>(model_.config.num_groups);
    std::vector<float> group_score;
    for (size_t g = 0; g < num_groups; ++g) {
      std::vector<float> best(c.begin() + static_cast<ptrdiff_t>(g * group_size()),
                              c.begin() + static_cast<ptrdiff_t>((g + 1) * group_size()));
      std::sort(best.begin(), best.end(), std::greater<>());
      const bool is_sum_of_two = num_groups > 1 && !model_.correction_bias.empty();
      group_score.push_back(is_sum_of_two ? best[0] + best[1] : best[0]);
    }
    std::vector<size_t> order;
    for (size_t g = 0; g < num_groups; ++g) {
      if (std::isfinite(group_score[g])) {
        order.push_back(g);
      }
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return group_score[a] > group_score[b]; });
    order.resize(std::min(order.size(), static_cast<size_t>(model_.config.topk_groups)));
    std::vector<bool> kept(num_groups);
    for (const size_t g : order) {
      kept[g] = true;
    }
    return kept;
  }

  const Model& model_;
};

}  // namespace

Support ref_supports(const Model&) {
  return Support::yes();
}

std::unique_ptr<Impl> make_ref(const Model& model) {
  return std::make_unique<Ref>(model);
}

}  // namespace moebius::router
