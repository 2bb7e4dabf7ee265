// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/run/layer_cost.h"

#include <algorithm>
#include <initializer_list>

namespace moebius::app {

namespace {

int64_t bytes_of(std::initializer_list<const Tensor*> tensors) {
  int64_t bytes = 0;
  for (const Tensor* tensor : tensors) {
    bytes += tensor->defined() ? tensor->nbytes() : 0;
  }
  return bytes;
}

int64_t bytes_of(const QuantDesc& desc) {
  return bytes_of({&desc.scale, &desc.alpha_or_gscale, &desc.zero_point, &desc.bias});
}

int64_t mlp_flops(const ActivationSpec& activation, int64_t hidden, int64_t intermediate) {
  const int64_t w1_rows = activation.gated ? 2 * intermediate : intermediate;
  return 2 * hidden * (w1_rows + intermediate);
}

}  // namespace

int64_t weight_bytes(const ExpertWeights& weights) {
  return bytes_of({&weights.w1, &weights.w2}) + bytes_of(weights.quant.w1) +
         bytes_of(weights.quant.w2);
}

LayerCost layer_cost(const MoeLayerWeights& weights) {
  const MoeConfig& config = weights.config;
  LayerCost cost;
  const int64_t experts_bytes = weight_bytes(weights.experts);
  cost.expert_bytes = experts_bytes / std::max<int64_t>(1, weights.experts.w1.dim(0));
  cost.shared_bytes = weight_bytes(weights.shared) + bytes_of({&weights.shared_gate});
  cost.router_bytes =
      bytes_of({&weights.router.gate, &weights.router.bias, &weights.router.correction_bias});
  cost.total_bytes = experts_bytes + cost.shared_bytes + cost.router_bytes;
  cost.flops_per_row = mlp_flops(weights.activation, config.hidden, config.intermediate);
  cost.router_flops_per_token = 2 * config.hidden * config.num_experts;
  cost.flops_per_token = cost.router_flops_per_token +
                         mlp_flops(weights.activation, config.hidden, weights.shared_intermediate);
  cost.multiplies_int8 = weights.experts.quant.use_int8_w8a8();
  cost.multiplies_fp8 = weights.experts.quant.use_fp8_w8a8();
  return cost;
}

LoadSummary summarize_load(const Tensor& load) {
  LoadSummary summary;
  const int64_t* counts = load.data<int64_t>();
  for (int64_t e = 0; e < load.numel(); ++e) {
    summary.rows += counts[e];
    summary.max = std::max(summary.max, counts[e]);
    summary.idle += counts[e] == 0;
  }
  summary.mean =
      static_cast<double>(summary.rows) / static_cast<double>(std::max<int64_t>(1, load.numel()));
  return summary;
}

CallWork call_work(const LayerCost& cost, const Tensor& load, int64_t num_tokens) {
  if (num_tokens == 0) {
    return {};
  }
  const LoadSummary summary = summarize_load(load);
  const int64_t shared_flops_per_token = cost.flops_per_token - cost.router_flops_per_token;
  CallWork work;
  work.router = {num_tokens * cost.router_flops_per_token, cost.router_bytes};
  work.experts = {summary.rows * cost.flops_per_row,
                  (load.numel() - summary.idle) * cost.expert_bytes};
  work.shared = {num_tokens * shared_flops_per_token, cost.shared_bytes};
  return work;
}

}  // namespace moebius::app
