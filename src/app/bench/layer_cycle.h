// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LayerCycle: layers of one model that calls go through in turn, so that weights come from memory
// as they do in a model, not from the last-level cache.
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
  std::string experts;       // implementation; empty: the first that accepts
  bool needs_probes = true;  // compute what the reference makes of the probes
};

class LayerCycle {
 public:
  static constexpr int64_t kNumProbes = 8;

  // Throws Unsupported when not even one layer fits in this machine's memory.
  LayerCycle(const LayerCycleOptions& options, const Stream& stream);

  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  // Layers 0, 1, ..., 0, ...; first() starts anew and gives layer 0.
  MoeLayer& first();
  MoeLayer& next();

  const app::LayerCost& cost() const { return cost_; }
  const std::string& quantization() const { return quantization_; }
  double tolerance() const { return tolerance_; }

  // A few tokens, and what the float64 oracle makes of them with the weights of layer 0.
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
