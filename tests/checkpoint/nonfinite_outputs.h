// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs layers whose checkpoint has one NaN or infinity, on any device.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "moebius/checkpoint.h"
#include "moebius/moe_layer.h"
#include "moebius/workspace.h"
#include "tests/checkpoint/checkpoint_testing.h"

namespace moebius::testing {

struct Damage {
  const char* module;  // of expert 1
  float value;
};
inline constexpr Damage kDamages[] = {
    {"gate_proj", std::numeric_limits<float>::quiet_NaN()},
    {"up_proj", std::numeric_limits<float>::infinity()},
    {"down_proj", std::numeric_limits<float>::quiet_NaN()},
    {"down_proj", -std::numeric_limits<float>::infinity()},
};

// The preset `tiny` with one element of layer 0's expert 1 replaced.
inline void write_damaged_model(const fs::path& folder, const Damage& damage) {
  make_model("tiny", 1, "none", 3, folder);
  std::vector<std::pair<std::string, Tensor>> tensors;
  {
    const Safetensors file(folder / "model.safetensors");
    for (const std::string& name : file.names()) {
      tensors.emplace_back(name, file.tensor(name).clone());
      if (name.ends_with(std::string("experts.1.") + damage.module + ".weight")) {
        set_float(tensors.back().second, 133, damage.value);
      }
    }
  }
  fs::remove(folder / "model.safetensors");
  write_safetensors(folder / "model.safetensors", tensors);
}

// Runs every implementation of the experts that serves the weights.  Where expert 1 is quantized,
// the outputs of exactly the tokens that chose it must be NaN.  Returns how many there were.
inline int expect_nan_outputs(const Checkpoint& checkpoint,
                              const std::string& quant,
                              const Stream& stream) {
  constexpr int64_t kTokens = 32;
  const int64_t hidden = checkpoint.info().hidden;
  const Tensor input = Tensor::empty({kTokens, hidden}, DType::kBF16);
  for (int64_t i = 0; i < input.numel(); ++i) {
    set_float(input, i, std::sin(0.37f * static_cast<float>(i * (i % 61))));
  }
  const Tensor x = to_device(input, stream.device(), stream);
  int num_served = 0;
  for (const ExpertsImpl& impl : experts_impls()) {
    if (impl.device != stream.device().type) {
      continue;
    }
    SCOPED_TRACE(std::string(impl.name));
    MoeLayerOptions options;
    options.experts = impl.name;
    std::unique_ptr<MoeLayer> layer;
    try {
      layer = std::make_unique<MoeLayer>(
          checkpoint.load_layer(0, {.quant = quant, .allow_nonfinite = true}), options, stream);
    } catch (const Unsupported&) {
      continue;
    }
    ++num_served;
    WorkspacePool workspaces;
    CallContext context;
    context.stream = stream;
    context.workspaces = &workspaces;
    const Tensor device_output = Tensor::empty({kTokens, hidden}, DType::kF32, stream.device());
    layer->forward(x, device_output, context);
    const Tensor output = to_device(device_output, Device::cpu(), stream);
    int64_t num_nan = 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      int64_t of_token = 0;
      for (int64_t i = 0; i < hidden; ++i) {
        of_token += std::isnan(get_float(output, t * hidden + i)) ? 1 : 0;
      }
      EXPECT_TRUE(of_token == 0 || of_token == hidden) << of_token << " of token " << t;
      num_nan += of_token > 0 ? 1 : 0;
    }
    const int64_t chosen = layer->expert_load().data<int64_t>()[1];
    EXPECT_GT(chosen, 0);
    EXPECT_LT(chosen, kTokens);
    EXPECT_EQ(num_nan, chosen);
  }
  return num_served;
}

}  // namespace moebius::testing
