// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LayerCycle: several layers of one model, which calls use in turn.  Weights are then read from
// memory, as they are in a model, and not from the last-level cache.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "app/run/layer_cost.h"
#include "moebius/moe_layer.h"
#include "moebius/stream.h"

namespace moebius::bench {

struct LayerCycleOptions {
  std::string preset;
  std::string quant;
  std::string experts;       // the implementation; empty: the first that accepts
  bool needs_probes = true;  // whether to compute the reference of the probes
};

class LayerCycle {
 public:
  static constexpr int64_t kNumProbes = 8;

  // Throws Unsupported when not even one layer fits in this machine's memory.
  LayerCycle(const LayerCycleOptions& options, const Stream& stream);

  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  // next() returns layer 1, 2, ... and after the last layer 0; first() starts anew with layer 0.
  MoeLayer& first();
  MoeLayer& next();

  const app::LayerCost& cost() const { return cost_; }
  const std::string& quantization() const { return quantization_; }
  double tolerance() const { return tolerance_; }

  // A few tokens, and their results by the float64 reference with the weights of layer 0.
  const Tensor& probes() const { return probes_; }      // [kNumProbes, H], the layer's dtype
  const Tensor& expected() const { return expected_; }  // f32 [kNumProbes, H]
  double reference_seconds() const { return reference_seconds_; }  // for all probes

 private:
  std::vector<std::unique_ptr<MoeLayer>> layers_;
  size_t current_ = 0;
  app::LayerCost cost_;
  std::string quantization_;
  double tolerance_ = 0;
  Tensor probes_;
  Tensor expected_;
  double reference_seconds_ = 0;
};

}  // namespace moebius::bench
