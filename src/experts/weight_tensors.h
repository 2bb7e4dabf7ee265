// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "moebius/experts.h"

namespace moebius {

// body(tensor, name) for every tensor of the weights, undefined ones included.
template <typename Weights, typename Body>  // Weights: ExpertWeights, const or not
void for_each_tensor(Weights& weights, Body body) {
  body(weights.w1, "w1");
  body(weights.w2, "w2");
  const auto quant = [&](auto& desc, const std::string& what) {
    body(desc.scale, what + "_scale");
    body(desc.alpha_or_gscale, what + " alphas");
    body(desc.zero_point, what + "_zero_point");
    body(desc.bias, what + "_bias");
  };
  quant(weights.quant.a1, "a1");
  quant(weights.quant.a2, "a2");
  quant(weights.quant.w1, "w1");
  quant(weights.quant.w2, "w2");
  body(weights.lora.w1_a, "lora w1_a");
  body(weights.lora.w1_b, "lora w1_b");
  body(weights.lora.w2_a, "lora w2_a");
  body(weights.lora.w2_b, "lora w2_b");
  body(weights.lora.scaling, "lora scaling");
}

}  // namespace moebius
