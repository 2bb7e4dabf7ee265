// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Small MoE layers with random weights, whole or a rank's share of them, and one call of them.
#pragma once

#include "moebius/moe_layer.h"
#include "tests/layer/tensors.h"

namespace moebius::testing {

struct RandomLayerOptions {
  int64_t shared_intermediate = 0;  // 0: there are no shared experts
  float experts_scale = 0.3f;       // the largest weight of an expert
  float shared_gate_scale = 0.0f;   // 0: shared experts have no gate
};

MoeLayerWeights random_layer(const MoeConfig& config, const RandomLayerOptions& options);

// The share of a layer that a rank holds under expert parallelism.
MoeLayerWeights share_of(MoeLayerWeights w, const ParallelConfig& parallel);

struct SmallLayer {
  static constexpr int64_t kExperts = 6;  // not a multiple of 4 ranks
  static constexpr int64_t kTopk = 2;
  static constexpr int64_t kHidden = 128;
  static constexpr int64_t kIntermediate = 48;
  static constexpr int64_t kMaxTokens = 8;  // per rank and call of a batched backend

  static MoeLayerWeights whole();
  static MoeLayerWeights shard(const ParallelConfig& parallel) {
    return share_of(whole(), parallel);
  }
  // These experts compute rows one by one, so bits do not depend on how rows are spread over ranks.
  static MoeLayerOptions options() {
    MoeLayerOptions chosen;
    chosen.experts = "cpu_portable";
    return chosen;
  }
};

// The output of one call with workspaces of its own.
Tensor forward(MoeLayer& layer,
               const Tensor& hidden,
               DType dtype = DType::kF32,
               const Stream& stream = {},
               const Tensor& lora_ids = {});

// The output of a layer that is made for this call, on one rank with one thread.
Tensor run_alone(MoeLayerWeights weights,
                 const MoeLayerOptions& options,
                 const Tensor& hidden,
                 const Tensor& lora_ids = {});

}  // namespace moebius::testing
