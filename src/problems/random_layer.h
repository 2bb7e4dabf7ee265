// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Layers of real models with random weights, made in memory in the scheme's own storage.  Values
// are codes and scales drawn at random, such that a layer keeps the variance of its input: no
// unquantized weight ever exists.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "moebius/moe_layer.h"
#include "moebius/stream.h"

namespace moebius::bench {

class RandomLayers {
 public:
  // quant: "none" or one of load_quant_schemes().  Throws InvalidArgument for an unknown name.
  RandomLayers(const std::string& preset, const std::string& quant, const Stream& stream);
  ~RandomLayers();

  // Bytes of the routed and shared experts of a layer, without scales.
  int64_t bytes_per_layer() const;
  // Equal arguments give equal weights, whatever the threads.  num_experts: a rank's share of the
  // model's, say, which a router with groups need not be able to split; 0: all.  topk: experts of a
  // token; 0: the model's.  Throws Unsupported where the scheme does not fit the shape.
  MoeLayerWeights make(uint64_t seed, int64_t num_experts = 0, int64_t topk = 0);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moebius::bench
