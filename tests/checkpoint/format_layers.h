// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The checkpoints of tests/fixtures/formats, and layers that compute with them on any device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "moebius/checkpoint.h"
#include "moebius/moe_layer.h"
#include "moebius/tolerance.h"
#include "moebius/workspace.h"
#include "tests/checkpoint/checkpoint_testing.h"

namespace moebius::testing {

inline constexpr const char* kFormatFamilies[] = {"mixtral", "qwen3_moe"};

// Tests run from the project root, or where MOEBIUS_FAMILIES names a copy of tests/fixtures.
inline fs::path formats_folder() {
  const char* fixtures = std::getenv("MOEBIUS_FAMILIES");
  return fs::path(fixtures != nullptr ? fixtures : "tests/fixtures") / "formats";
}

inline std::vector<std::string> format_names() {
  std::vector<std::string> names;
  std::error_code none;  // elsewhere there are no cases
  for (const auto& entry : fs::directory_iterator(formats_folder(), none)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// silu(gate) * up through the expected weights of one expert, in double.
inline std::vector<double> expert_output(const Tensor& w1, const Tensor& w2, const Tensor& x) {
  const auto dot = [](const float* row, const std::vector<double>& in) {
    double sum = 0;
    for (size_t k = 0; k < in.size(); ++k) {
      sum += static_cast<double>(row[k]) * in[k];
    }
    return sum;
  };
  std::vector<double> in;
  for (int64_t k = 0; k < x.numel(); ++k) {
    in.push_back(get_float(x, k));
  }
  const int64_t size = w2.dim(1);
  std::vector<double> hidden;
  for (int64_t i = 0; i < size; ++i) {
    const double gate = dot(w1[i].data<float>(), in);
    const double up = dot(w1[size + i].data<float>(), in);
    hidden.push_back(up * gate / (1.0 + std::exp(-gate)));
  }
  std::vector<double> out;
  for (int64_t n = 0; n < w2.dim(0); ++n) {
    out.push_back(dot(w2[n].data<float>(), hidden));
  }
  return out;
}

// Runs the layer of a format's checkpoint, and compares its outputs with those of the expected
// weights.
inline void expect_layer_computes(const std::string& format,
                                  const std::string& family,
                                  const std::string& quant,
                                  const Stream& stream) {
  constexpr int64_t kTokens = 6;
  SCOPED_TRACE(format + " " + family + " " + quant);
  const Checkpoint checkpoint(formats_folder() / format / family);
  const Safetensors expected_weights(formats_folder() / format / "expected.safetensors");
  MoeLayerWeights weights = checkpoint.load_layer(0, {.quant = quant});
  const double tolerance = layer_tolerance(weights.experts.quant);
  const int64_t hidden = checkpoint.info().hidden;
  const Tensor x = Tensor::empty({kTokens, hidden}, DType::kBF16);
  for (int64_t i = 0; i < x.numel(); ++i) {
    set_float(x, i, 0.05f * std::sin(0.37f * static_cast<float>(i * (i % 61))));
  }
  const Router router(weights.router_config, weights.router);
  const Tensor logits = Tensor::empty({kTokens, weights.config.num_experts}, DType::kF32);
  const Tensor ids = Tensor::empty({kTokens, 1}, DType::kI32);
  const Tensor scores = Tensor::empty({kTokens, 1}, DType::kF32);
  router.logits(x, logits, Stream::cpu());
  router.select(logits, ids, scores, Stream::cpu());
  MoeLayer layer(std::move(weights), MoeLayerOptions(), stream);
  WorkspacePool workspaces;
  CallContext context;
  context.stream = stream;
  context.workspaces = &workspaces;
  const Tensor output = Tensor::empty({kTokens, hidden}, DType::kF32, stream.device());
  const Tensor in = to_device(x, stream.device(), stream);  // stays until the stream has read it
  layer.forward(in, output, context);
  const Tensor y = to_device(output, Device::cpu(), stream);
  RelativeError error;
  for (int64_t t = 0; t < kTokens; ++t) {
    const int64_t e = ids.data<int32_t>()[t];
    const std::vector<double> expected =
        expert_output(expected_weights.tensor("w1")[e], expected_weights.tensor("w2")[e], x[t]);
    for (int64_t n = 0; n < hidden; ++n) {
      const double reference =
          expected[static_cast<size_t>(n)] * static_cast<double>(scores.data<float>()[t]);
      error.add(get_float(y[t], n), static_cast<float>(reference));
    }
  }
  // The table's bounds are those of layers of usual sizes; these have 64 and 32 columns.
  EXPECT_LT(error.value(), 1.5 * tolerance);
}

}  // namespace moebius::testing
