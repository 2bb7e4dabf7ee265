// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/bench/layer_cycle.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/machine.h"
#include "app/run/random_tensor.h"
#include "app/run/reference_check.h"
#include "app/run/subject.h"
#include "moebius/error.h"
#include "moebius/tolerance.h"
#include "problems/random_layer.h"

namespace moebius::bench {

namespace {

// Why 16: a cache that holds a sixteenth of the weights that calls use in turn can serve at most a
// sixteenth of their reads.
constexpr int64_t kCachesPerCycle = 16;
constexpr int64_t kFewestLayers = 2;
constexpr int64_t kMostLayers = 64;  // bounds small models, whose short calls matter little

// Returns how many layers to make.  They may take two thirds of the memory, and while a layer is
// being packed it takes its room twice.
int64_t choose_num_layers(const LayerCycleOptions& options, int64_t bytes) {
  const int64_t budget = app::memory_bytes() / 3 * 2;
  const int64_t most = budget / bytes - 1;
  if (most < 1) {
    throw Unsupported(fmt::format(
        "a layer of {} with quant {} takes {} bytes, while it is packed twice that; this machine "
        "has {} bytes, of which two thirds may be used",
        options.preset, options.quant, bytes, app::memory_bytes()));
  }
  const int64_t wanted = kCachesPerCycle * app::last_level_cache_bytes() / bytes + 1;
  return std::min(most, std::clamp(wanted, kFewestLayers, kMostLayers));
}

}  // namespace

LayerCycle::LayerCycle(const LayerCycleOptions& options, const Stream& stream) {
  MoeLayerOptions layer_options;
  layer_options.experts = options.experts;
  RandomLayers layers(options.preset, options.quant, stream);
  const int64_t num_layers = choose_num_layers(options, layers.bytes_per_layer());
  for (int64_t i = 0; i < num_layers; ++i) {
    MoeLayerWeights weights = layers.make(static_cast<uint64_t>(i));
    if (i == 0) {
      cost_ = app::layer_cost(weights);
      quantization_ = app::describe(weights.experts.quant);
      tolerance_ = layer_tolerance(weights.experts.quant);
      if (options.needs_probes) {
        const MoeConfig& config = weights.config;
        probes_ = app::random_normal({kNumProbes, config.hidden}, config.in_dtype, /*seed=*/1);
        const app::ReferenceOutput reference = app::reference_forward(weights, probes_, stream);
        expected_ = reference.output;
        reference_seconds_ = reference.seconds;
      }
    }
    layers_.push_back(std::make_unique<MoeLayer>(std::move(weights), layer_options, stream));
  }
}

MoeLayer& LayerCycle::first() {
  current_ = 0;
  return *layers_.front();
}

MoeLayer& LayerCycle::next() {
  current_ = (current_ + 1) % layers_.size();
  return *layers_[current_];
}

}  // namespace moebius::bench
