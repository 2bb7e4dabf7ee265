// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A small MoE layer with random weights, whole or a rank's share of its experts.
#pragma once

#include "moebius/moe_layer.h"
#include "tests/layer/tensors.h"

namespace moebius::testing {

struct SmallLayer {
  static constexpr int64_t kExperts = 6;  // not a multiple of 4 ranks
  static constexpr int64_t kHidden = 128;
  static constexpr int64_t kMaxTokens = 8;  // per rank and call of a batched backend

  static MoeLayerWeights whole() {
    constexpr int64_t kIntermediate = 48;
    MoeLayerWeights w;
    w.config.num_experts = w.config.num_local_experts = kExperts;
    w.config.experts_per_token = 2;
    w.config.hidden = kHidden;
    w.config.intermediate = kIntermediate;
    w.config.in_dtype = DType::kF32;
    w.config.max_num_tokens = kMaxTokens;
    w.router_config.num_experts = kExperts;
    w.router_config.topk = 2;
    w.router_config.renormalize = true;
    w.router.gate = random_tensor({kExperts, kHidden}, DType::kF32, 1, 0.3f);
    w.experts.w1 = random_tensor({kExperts, 2 * kIntermediate, kHidden}, DType::kF32, 2, 0.3f);
    w.experts.w2 = random_tensor({kExperts, kHidden, kIntermediate}, DType::kF32, 3, 0.3f);
    w.shared.w1 = random_tensor({1, 2 * kIntermediate, kHidden}, DType::kF32, 4, 0.3f);
    w.shared.w2 = random_tensor({1, kHidden, kIntermediate}, DType::kF32, 5, 0.3f);
    w.shared_intermediate = kIntermediate;
    return w;
  }

  static MoeLayerWeights shard(const ParallelConfig& parallel) {
    MoeLayerWeights w = whole();
    const ExpertRange own = expert_range(kExperts, parallel.ep_size, parallel.ep_rank);
    w.config.parallel = parallel;
    w.config.num_local_experts = own.size();
    w.experts.w1 = w.experts.w1.slice(own.begin, own.end);
    w.experts.w2 = w.experts.w2.slice(own.begin, own.end);
    return w;
  }

  // Rows are computed one by one, so that their bits do not depend on who has how many.
  static MoeLayerOptions options() {
    MoeLayerOptions chosen;
    chosen.experts = "cpu_portable";
    return chosen;
  }
};

}  // namespace moebius::testing
