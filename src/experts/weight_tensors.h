// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Names the tensors of ExpertWeights one after the other.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <type_traits>

#include "moebius/experts.h"

namespace moebius {

// One of the two weights, with how it and the rows that it multiplies are quantized.
template <typename Weights>  // ExpertWeights, const or not
struct WeightSide {
  template <typename T>
  using Like = std::conditional_t<std::is_const_v<Weights>, const T, T>;

  std::string_view name;       // "w1"
  std::string_view rows_name;  // "a1"
  Like<Tensor>& w;
  Like<QuantDesc>& quant;
  Like<QuantDesc>& rows;
};

template <typename Weights>
std::array<WeightSide<Weights>, 2> sides_of(Weights& weights) {
  auto& quant = weights.quant;
  return {
      {{"w1", "a1", weights.w1, quant.w1, quant.a1}, {"w2", "a2", weights.w2, quant.w2, quant.a2}}};
}

// The next functions call body(tensor, name) for each of some tensors, undefined ones included.

// The weight itself with its scales, zero points and bias.
template <typename Weights, typename Body>
void for_each_weight_tensor(const WeightSide<Weights>& side, Body body) {
  const std::string what(side.name);
  body(side.w, what);
  body(side.quant.scale, what + "_scale");
  body(side.quant.alpha_or_gscale, what + " alphas");
  body(side.quant.zero_point, what + "_zero_point");
  body(side.quant.bias, what + "_bias");
}

// The static scales of its rows.
template <typename Weights, typename Body>
void for_each_row_tensor(const WeightSide<Weights>& side, Body body) {
  const std::string what(side.rows_name);
  body(side.rows.scale, what + "_scale");
  body(side.rows.alpha_or_gscale, what + "_gscale");
}

template <typename Lora, typename Body>  // Lora: LoraWeights, const or not
void for_each_lora_tensor(Lora& lora, Body body) {
  body(lora.w1_a, "lora w1_a");
  body(lora.w1_b, "lora w1_b");
  body(lora.w2_a, "lora w2_a");
  body(lora.w2_b, "lora w2_b");
  body(lora.scaling, "lora scaling");
}

template <typename Weights, typename Body>  // Weights: ExpertWeights, const or not
void for_each_tensor(Weights& weights, Body body) {
  for (const auto& side : sides_of(weights)) {
    for_each_weight_tensor(side, body);
    for_each_row_tensor(side, body);
  }
  for_each_lora_tensor(weights.lora, body);
}

}  // namespace moebius
