// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Counts, from a layer's weights and load, what one call has to compute and to read.
#pragma once

#include <cstdint>

#include "moebius/moe_layer.h"

namespace moebius::app {

// Bytes are those of the checkpoint's format with scales and biases, even where an implementation
// repacks them.  A multiply and an add count as two operations.
struct LayerCost {
  int64_t expert_bytes = 0;  // one routed expert
  int64_t shared_bytes = 0;  // all shared experts
  int64_t router_bytes = 0;
  int64_t total_bytes = 0;      // the whole layer
  int64_t flops_per_row = 0;    // one row through one routed expert
  int64_t flops_per_token = 0;  // router and shared experts
  int64_t router_flops_per_token = 0;
  // Whether the routed experts multiply int8 by int8, or fp8 by fp8.
  bool multiplies_int8 = false;
  bool multiplies_fp8 = false;
};
// Returns the bytes of values, scales, zero points and biases.
int64_t weight_bytes(const ExpertWeights& weights);
LayerCost layer_cost(const MoeLayerWeights& weights);

struct LoadSummary {
  int64_t rows = 0;  // (token, expert) pairs computed
  int64_t max = 0;
  double mean = 0;
  int64_t idle = 0;  // experts without rows
};
// load: i64 [E].
LoadSummary summarize_load(const Tensor& load);

struct Work {
  int64_t flops = 0;
  int64_t bytes = 0;  // of weights
};
// The work of one call of all ranks together.  Weights count once, and those of experts without
// rows do not count.
struct CallWork {
  Work router;
  Work experts;
  Work shared;

  Work all() const {
    return {router.flops + experts.flops + shared.flops,
            router.bytes + experts.bytes + shared.bytes};
  }
};
CallWork call_work(const LayerCost& cost, const Tensor& load, int64_t num_tokens);

}  // namespace moebius::app
