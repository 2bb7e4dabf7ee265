// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Makes layers of real models with random weights in memory.  Codes and scales are drawn at random,
// in the scheme's own format and such that a layer keeps the variance of its input.  Weights never
// exist unquantized.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "moebius/moe_layer.h"
#include "moebius/stream.h"

namespace moebius::bench {

class RandomLayers {
 public:
  // quant is "none" or one of load_quant_schemes().  Throws InvalidArgument for an unknown name.
  RandomLayers(const std::string& preset, const std::string& quant, const Stream& stream);
  ~RandomLayers();

  // The bytes of the routed and shared experts of a layer, without scales.
  int64_t bytes_per_layer() const;
  // Equal arguments give equal weights, whatever the number of threads.  num_experts may be a
  // rank's share of the experts, even where the router's groups cannot be split so; 0 stands for
  // all.  topk 0 stands for the model's.  Throws Unsupported where the scheme does not fit the
  // shape.
  MoeLayerWeights make(uint64_t seed, int64_t num_experts = 0, int64_t topk = 0);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moebius::bench
