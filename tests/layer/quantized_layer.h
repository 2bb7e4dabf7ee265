// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Small MoE layers whose experts are quantized, whole or a rank's share of them.
#pragma once

#include "experts/weight_tensors.h"
#include "moebius/moe_layer.h"
#include "problems/expert_problem.h"
#include "tests/layer/small_layer.h"

namespace moebius::testing {

struct QuantizedLayer {
  static constexpr int64_t kExperts = 10;  // tests have up to 8 ranks
  static constexpr int64_t kTopk = 2;
  static constexpr int64_t kHidden = 256;
  static constexpr int64_t kIntermediate = 96;
  static constexpr int64_t kMaxTokens = 8;  // per rank and call of a batched backend

  static MoeLayerWeights whole(const Scheme& scheme, DType dtype) {
    MoeLayerWeights weights = random_layer({.num_experts = kExperts,
                                            .experts_per_token = kTopk,
                                            .hidden = kHidden,
                                            .intermediate = kIntermediate,
                                            .in_dtype = dtype,
                                            .max_num_tokens = kMaxTokens},
                                           {});
    ExpertsDesc desc;
    desc.num_experts = desc.num_local_experts = kExperts;
    desc.hidden = kHidden;
    desc.intermediate = kIntermediate;
    weights.experts = ExpertProblemMaker(5).make_weights(desc, {.scheme = scheme, .dtype = dtype});
    return weights;
  }

  // Tensors with one entry for each expert are cut as the weights are.
  static MoeLayerWeights share(const Scheme& scheme, DType dtype, const ParallelConfig& parallel) {
    MoeLayerWeights weights = whole(scheme, dtype);
    const ExpertRange own = expert_range(kExperts, parallel.ep_size, parallel.ep_rank);
    weights.config.parallel = parallel;
    for_each_tensor(weights.experts, [&](Tensor& tensor, const auto&) {
      if (tensor && tensor.dim(0) == kExperts) {
        tensor = tensor.slice(own.begin, own.end);
      }
    });
    return weights;
  }
};

}  // namespace moebius::testing
