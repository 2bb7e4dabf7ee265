// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/layer/small_layer.h"

#include <utility>

namespace moebius::testing {

MoeLayerWeights random_layer(const MoeConfig& config, const RandomLayerOptions& options) {
  const auto random = [&](const Shape& shape, uint32_t seed, float scale) {
    return random_tensor(shape, config.in_dtype, seed, scale);
  };
  const auto experts = [&](int64_t count, int64_t width, uint32_t seed) {
    ExpertWeights e;
    e.w1 = random({count, 2 * width, config.hidden}, seed, options.experts_scale);
    e.w2 = random({count, config.hidden, width}, seed + 1, options.experts_scale);
    return e;
  };
  MoeLayerWeights w;
  w.config = config;
  w.router_config.num_experts = config.num_experts;
  w.router_config.topk = config.experts_per_token;
  w.router_config.renormalize = config.experts_per_token > 1;
  w.router.gate = random({config.num_experts, config.hidden}, 1, 0.3f);
  w.experts = experts(config.num_experts, config.intermediate, 2);
  if (options.shared_intermediate > 0) {
    w.shared = experts(1, options.shared_intermediate, 4);
    w.shared_intermediate = options.shared_intermediate;
    if (options.shared_gate_scale > 0) {
      w.shared_gate = random({1, config.hidden}, 6, options.shared_gate_scale);
    }
  }
  return w;
}

MoeLayerWeights share_of(MoeLayerWeights w, const ParallelConfig& parallel) {
  const ExpertRange own = expert_range(w.config.num_experts, parallel.ep_size, parallel.ep_rank);
  w.config.parallel = parallel;
  w.experts.w1 = w.experts.w1.slice(own.begin, own.end);
  w.experts.w2 = w.experts.w2.slice(own.begin, own.end);
  return w;
}

Tensor forward(MoeLayer& layer,
               const Tensor& hidden,
               DType dtype,
               const Stream& stream,
               const Tensor& lora_ids) {
  WorkspacePool pool;
  const Tensor output = Tensor::empty(hidden.shape(), dtype);
  poison(output);
  layer.forward({.hidden = hidden, .lora_ids = lora_ids}, output, {stream, &pool});
  return output;
}

Tensor run_alone(MoeLayerWeights weights,
                 const MoeLayerOptions& options,
                 const Tensor& hidden,
                 const Tensor& lora_ids) {
  const Stream stream = Stream::cpu(1);
  MoeLayer layer(std::move(weights), options, stream);
  return forward(layer, hidden, DType::kF32, stream, lora_ids);
}

MoeLayerWeights SmallLayer::whole() {
  return random_layer({.num_experts = kExperts,
                       .experts_per_token = kTopk,
                       .hidden = kHidden,
                       .intermediate = kIntermediate,
                       .in_dtype = DType::kF32,
                       .max_num_tokens = kMaxTokens},
                      {.shared_intermediate = kIntermediate});
}

}  // namespace moebius::testing
