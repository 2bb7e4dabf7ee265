// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Compares whole layers of real parts with a direct evaluation in double.
#include "moebius/moe_layer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "moebius/quantize.h"
#include "tests/layer/small_layer.h"

namespace moebius::testing {
namespace {

constexpr int64_t kExperts = 8;
constexpr int64_t kHidden = 64;
constexpr int64_t kIntermediate = 32;

MoeLayerWeights make_weights(int64_t topk, bool has_shared, DType dtype = DType::kBF16) {
  return random_layer({.num_experts = kExperts,
                       .experts_per_token = topk,
                       .hidden = kHidden,
                       .intermediate = kIntermediate,
                       .in_dtype = dtype,
                       .max_num_tokens = 8},
                      {.shared_intermediate = has_shared ? 48 : 0, .shared_gate_scale = 0.3f});
}

// w2[e] * (silu(gate) * up) of one row, in double.
std::vector<double> mlp(const ExpertWeights& w, int64_t e, std::vector<double> x) {
  const int64_t width = w.w2.dim(2);
  std::vector<double> up(static_cast<size_t>(2 * width), 0.0);
  for (int64_t n = 0; n < 2 * width; ++n) {
    for (int64_t h = 0; h < kHidden; ++h) {
      up[static_cast<size_t>(n)] +=
          x[static_cast<size_t>(h)] * get_float(w.w1, (e * 2 * width + n) * kHidden + h);
    }
  }
  std::vector<double> y(kHidden, 0.0);
  for (int64_t i = 0; i < width; ++i) {
    const double gate = up[static_cast<size_t>(i)];
    const double a = gate / (1.0 + std::exp(-gate)) * up[static_cast<size_t>(width + i)];
    for (int64_t h = 0; h < kHidden; ++h) {
      y[static_cast<size_t>(h)] += a * get_float(w.w2, (e * kHidden + h) * width + i);
    }
  }
  return y;
}

// The expected output, with the ids and weights that the layer's own router chooses.
Tensor expected_output(const MoeLayerWeights& w, const Router& router, const Tensor& hidden) {
  const int64_t num_tokens = hidden.dim(0);
  const int64_t topk = w.config.experts_per_token;
  const Tensor logits = Tensor::empty({num_tokens, kExperts}, DType::kF32);
  const Tensor ids = Tensor::empty({num_tokens, topk}, DType::kI32);
  const Tensor weights = Tensor::empty({num_tokens, topk}, DType::kF32);
  router.logits(hidden, logits, {});
  router.select(logits, ids, weights, {});
  const Tensor output = Tensor::empty({num_tokens, kHidden}, DType::kF32);
  for (int64_t t = 0; t < num_tokens; ++t) {
    std::vector<double> sum(kHidden, 0.0);
    std::vector<double> x(kHidden);
    double gate = 0.0;
    for (int64_t h = 0; h < kHidden; ++h) {
      x[static_cast<size_t>(h)] = get_float(hidden, t * kHidden + h);
    }
    const auto add = [&](const std::vector<double>& y, double weight) {
      for (size_t h = 0; h < y.size(); ++h) {
        sum[h] += weight * y[h];
      }
    };
    for (int64_t k = 0; k < topk; ++k) {
      const int64_t e = ids.data<int32_t>()[t * topk + k];
      const double weight = weights.data<float>()[t * topk + k];
      if (w.apply_router_weight_on_input) {
        auto weighted = x;
        for (double& value : weighted) {
          value *= weight;
        }
        add(mlp(w.experts, e, weighted), 1.0);
      } else {
        add(mlp(w.experts, e, x), weight);
      }
    }
    if (w.shared.w1) {
      for (int64_t h = 0; h < kHidden; ++h) {
        gate += x[static_cast<size_t>(h)] * get_float(w.shared_gate, h);
      }
      add(mlp(w.shared, 0, x), 1.0 / (1.0 + std::exp(-gate)));
    }
    for (int64_t h = 0; h < kHidden; ++h) {
      output.data<float>()[t * kHidden + h] = static_cast<float>(sum[static_cast<size_t>(h)]);
    }
  }
  return output;
}

MoeLayerOptions options_of(ActivationFormat format,
                           Precision precision = Precision::kModel,
                           int64_t chunk_tokens = 0) {
  MoeLayerOptions options;
  options.format = format;
  options.precision = precision;
  options.kernel.chunk_tokens = chunk_tokens;
  return options;
}

// Three sums in a row, each over 64 products in f32.
constexpr double kF32Tolerance = 1e-5;

constexpr ActivationFormat kFormats[] = {ActivationFormat::kStandard, ActivationFormat::kBatched};

TEST(MoeLayer, OracleEqualsDirectEvaluation) {
  for (const bool has_shared : {false, true}) {
    for (const ActivationFormat format : kFormats) {
      const auto weights = make_weights(2, has_shared);
      MoeLayer layer(weights, options_of(format, Precision::kF64), {});
      const Tensor hidden = random_tensor({19, kHidden}, DType::kBF16, 7);
      const Tensor output = forward(layer, hidden, DType::kF32);
      EXPECT_LT(relative_error(output, expected_output(weights, *layer.router(), hidden)), 1e-6);
    }
  }
}

TEST(MoeLayer, ModelPrecisionIsCloseForEveryFormatAndTopk) {
  for (const ActivationFormat format : kFormats) {
    for (const int64_t topk : {1, 2, 6}) {
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        const auto weights = make_weights(topk, true, dtype);
        MoeLayer layer(weights, options_of(format), {});
        const Tensor hidden = random_tensor({19, kHidden}, dtype, 7);
        const Tensor output = forward(layer, hidden, dtype);
        EXPECT_LT(relative_error(output, expected_output(weights, *layer.router(), hidden)),
                  dtype == DType::kF32 ? kF32Tolerance : layer_tolerance({}))
            << name(format) << " topk " << topk << " " << name(dtype);
      }
    }
  }
}

// Experts in fp8 with a scale per channel.  Activations have a scale per token or per tensor.
MoeLayerWeights make_fp8_weights(bool per_token) {
  MoeLayerWeights weights = make_weights(2, false);
  const QuantizeSpec spec{.format = QuantFormat::kFp8, .group = GroupShape::per_token()};
  QuantTensors tensors;
  const auto quantize_weight = [&](Tensor& weight, Tensor& scale) {
    const Shape shape = weight.shape();
    const Quantized q = quantize(weight.view({shape[0] * shape[1], shape[2]}), spec);
    weight = q.values.view(shape);
    scale = q.scale.view({shape[0], shape[1]});
  };
  quantize_weight(weights.experts.w1, tensors.w1_scale);
  quantize_weight(weights.experts.w2, tensors.w2_scale);
  weights.experts.quant = QuantConfig::fp8_w8a8(tensors, per_token, /*per_out_channel=*/true);
  return weights;
}

TEST(MoeLayer, QuantizedActivations) {
  const Tensor hidden = random_tensor({19, kHidden}, DType::kBF16, 7);
  MoeLayer oracle(make_fp8_weights(true), options_of(ActivationFormat::kStandard, Precision::kF64),
                  {});
  const Tensor exact = forward(oracle, hidden, DType::kF32);
  for (const bool per_token : {false, true}) {
    for (const ActivationFormat format : kFormats) {
      MoeLayer layer(make_fp8_weights(per_token), options_of(format), {});
      const Tensor output = forward(layer, hidden, DType::kF32);
      EXPECT_LT(relative_error(output, exact), layer_tolerance(layer.kernel().experts().quant()))
          << name(format) << " " << per_token;
      EXPECT_GT(relative_error(output, exact), 1e-3) << "activations were not quantized";
      if (per_token) {
        MoeLayer chunked(make_fp8_weights(per_token), options_of(format, Precision::kModel, 5), {});
        expect_same_bits(forward(chunked, hidden, DType::kF32), output);
      }
    }
  }
}

TEST(MoeLayer, WeightOnInput) {
  for (const ActivationFormat format : kFormats) {
    auto weights = make_weights(1, true);
    weights.apply_router_weight_on_input = true;
    MoeLayer layer(weights, options_of(format), {});
    const Tensor hidden = random_tensor({11, kHidden}, DType::kBF16, 7);
    EXPECT_LT(relative_error(forward(layer, hidden, DType::kF32),
                             expected_output(weights, *layer.router(), hidden)),
              layer_tolerance({}));
  }
}

TEST(MoeLayer, ChunkingAndThreadsDoNotChangeABit) {
  const Tensor hidden = random_tensor({23, kHidden}, DType::kBF16, 7);
  for (const ActivationFormat format : kFormats) {
    MoeLayer whole(make_weights(3, true), options_of(format), {});
    MoeLayer chunked(make_weights(3, true), options_of(format, Precision::kModel, 5), {});
    const Tensor expected = forward(whole, hidden, DType::kF32, Stream::cpu(1));
    expect_same_bits(forward(chunked, hidden, DType::kF32, Stream::cpu(1)), expected);
    expect_same_bits(forward(whole, hidden, DType::kF32, Stream::cpu(3)), expected);
  }
}

TEST(MoeLayer, OutputMayBeHidden) {
  for (const ActivationFormat format : kFormats) {
    for (const bool has_shared : {false, true}) {
      MoeLayer layer(make_weights(2, has_shared), options_of(format), {});
      const Tensor hidden = random_tensor({19, kHidden}, DType::kBF16, 7);
      const Tensor expected = forward(layer, hidden, DType::kBF16);
      WorkspacePool pool;
      layer.forward(hidden, hidden, {.workspaces = &pool});
      expect_same_bits(hidden, expected);
    }
  }
}

TEST(MoeLayer, RoutedAndSharedAreSummedOnceInF32) {
  auto weights = make_weights(2, true);
  MoeLayer both(weights, {}, {});
  MoeLayer routed_only(make_weights(2, false), {}, {});
  const Tensor hidden = random_tensor({5, kHidden}, DType::kBF16, 7);
  const Tensor sum = forward(both, hidden, DType::kF32);
  const Tensor routed = forward(routed_only, hidden, DType::kF32);
  const Tensor rounded = forward(both, hidden, DType::kBF16);
  for (int64_t i = 0; i < sum.numel(); ++i) {
    // The routed part is a bf16 value, and the rest, which is the shared part, must be one, too.
    const float shared = get_float(sum, i) - get_float(routed, i);
    EXPECT_NEAR(shared, static_cast<float>(BFloat16(shared)), 1e-6f * std::fabs(get_float(sum, i)));
    EXPECT_EQ(get_float(rounded, i), static_cast<float>(BFloat16(get_float(sum, i))));
  }
}

TEST(MoeLayer, OtherHiddenDtypesAreRoundedToTheModels) {
  MoeLayer layer(make_weights(2, true), {}, {});
  MoeLayer oracle(make_weights(2, true), options_of(ActivationFormat::kStandard, Precision::kF64),
                  {});
  const Tensor hidden = random_tensor({5, kHidden}, DType::kF32, 7);
  const Tensor rounded = convert(hidden, DType::kBF16);
  for (MoeLayer* each : {&layer, &oracle}) {
    expect_same_bits(forward(*each, hidden, DType::kF32), forward(*each, rounded, DType::kF32));
  }
}

TEST(MoeLayer, BatchedTakesAnyNumberOfTokens) {
  // max_num_tokens is 8, so there are pieces of 8 and a shorter last one.
  MoeLayer standard(make_weights(2, false), {}, {});
  MoeLayer batched(make_weights(2, false), options_of(ActivationFormat::kBatched), {});
  for (const int64_t num_tokens : {0, 1, 7, 8, 9, 16, 27}) {
    const Tensor hidden = random_tensor({num_tokens, kHidden}, DType::kBF16, 7);
    const Tensor a = forward(standard, hidden, DType::kF32);
    const Tensor b = forward(batched, hidden, DType::kF32);
    if (num_tokens > 0) {
      EXPECT_LT(relative_error(b, a), layer_tolerance({})) << num_tokens << " tokens";
    }
    expect_same_bits(standard.expert_load(), batched.expert_load());
  }
}

// The number of selections in the last call, over all experts.
int64_t num_selections(const MoeLayer& layer) {
  const Tensor load = layer.expert_load();
  return std::accumulate(load.data<int64_t>(), load.data<int64_t>() + load.numel(), int64_t{0});
}

TEST(MoeLayer, CountsSelectionsPerExpert) {
  MoeLayer layer(make_weights(3, false), options_of(ActivationFormat::kBatched), {});
  forward(layer, random_tensor({20, kHidden}, DType::kBF16, 7), DType::kF32);
  EXPECT_EQ(layer.expert_load().dtype(), DType::kI64);
  EXPECT_EQ(layer.expert_load().shape(), Shape({kExperts}));
  EXPECT_EQ(num_selections(layer), 60);
  forward(layer, random_tensor({1, kHidden}, DType::kBF16, 7), DType::kF32);
  EXPECT_EQ(num_selections(layer), 3);
}

TEST(MoeLayer, ProfilesItsStages) {
  MoeLayer layer(make_weights(2, true), {}, {});
  WorkspacePool pool;
  Profile profile;
  const Tensor hidden = random_tensor({4, kHidden}, DType::kBF16, 7);
  layer.forward(hidden, Tensor::empty({4, kHidden}, DType::kF32),
                {.workspaces = &pool, .profile = &profile});
  for (const auto& stage : profile.stages()) {
    EXPECT_EQ(stage.calls, stage.name == "finalize" ? 2 : 1)
        << stage.name;  // finalize has two halves
  }
  EXPECT_EQ(stage_names(profile),
            (std::vector<std::string>{"router", "prepare", "experts", "finalize", "shared"}));
}

TEST(MoeLayer, SimulatedRoutingNeedsNoGate) {
  auto weights = make_weights(2, false);
  weights.router.gate = {};
  weights.router_config.simulation = Simulation::kUniform;
  MoeLayer layer(weights, {}, {});
  forward(layer, random_tensor({50, kHidden}, DType::kBF16, 7), DType::kF32);
  EXPECT_EQ(num_selections(layer), 100);
}

TEST(MoeLayer, RefusesWeightsThatContradictTheConfig) {
  const auto expect_refusal = [](Parts parts, auto&& change) {
    auto weights = make_weights(2, true);
    change(weights);
    expect_error(parts, [&] { MoeLayer(std::move(weights), MoeLayerOptions{}, Stream()); });
  };
  expect_refusal({"no error"}, [](MoeLayerWeights&) {});
  expect_refusal({"9", "8"}, [](MoeLayerWeights& w) { w.config.experts_per_token = 9; });
  expect_refusal({"num_local_experts", "is 7", "expected 8"},
                 [](MoeLayerWeights& w) { w.config.num_local_experts = 7; });
  expect_refusal({"topk of the router", "3", "2"},
                 [](MoeLayerWeights& w) { w.router_config.topk = 3; });
  expect_refusal({"experts of the router", "7", "8"},
                 [](MoeLayerWeights& w) { w.router_config.num_experts = 7; });
  expect_refusal({"gate of the router"}, [](MoeLayerWeights& w) { w.router.gate = {}; });
  expect_refusal({"gate", "[8, 32]", "[8, 64]"}, [](MoeLayerWeights& w) {
    w.router.gate = random_tensor({8, 32}, DType::kF32, 1);
  });
  expect_refusal({"apply_router_weight_on_input", "2", "1"},
                 [](MoeLayerWeights& w) { w.apply_router_weight_on_input = true; });
  expect_refusal({"shared_gate"}, [](MoeLayerWeights& w) { w.shared = {}; });
  expect_refusal({"ranks of the group", "is 2", "expected 1"}, [](MoeLayerWeights& w) {
    w.config.parallel = ParallelConfig::make(2, 0, 1, 0, true);
  });
  expect_refusal({"w1", "7", "8"}, [](MoeLayerWeights& w) {
    w.experts.w1 = random_tensor({7, 2 * kIntermediate, kHidden}, DType::kF32, 1);
  });
}

TEST(MoeLayer, RefusesBadCalls) {
  MoeLayer layer(make_weights(2, true), {}, {});
  WorkspacePool pool;
  const CallContext context{.workspaces = &pool};
  const auto expect_refusal = [&](Parts parts, const Tensor& hidden, const Tensor& output) {
    expect_error(parts, [&] { layer.forward(hidden, output, context); });
  };
  const Tensor hidden = random_tensor({3, kHidden}, DType::kBF16, 7);
  expect_refusal({"65", "64"}, random_tensor({3, 65}, DType::kBF16, 1), hidden);
  expect_refusal({"output", "[4, 64]", "[3, 64]"}, hidden,
                 Tensor::empty({4, kHidden}, DType::kF32));
  expect_refusal({"output", "i32"}, hidden, Tensor::empty({3, kHidden}, DType::kI32));
  expect_refusal({"hidden", "i32"}, ids_of({1, 64}, std::vector<int32_t>(64, 0)), hidden);
  expect_error({"workspaces"}, [&] { layer.forward(hidden, hidden, {}); });
}

// The layer must not read or write such tensors.
TEST(MoeLayer, RefusesTensorsElsewhere) {
  const auto elsewhere = [](const Tensor& tensor) {
    return Tensor::borrow(tensor.raw(), tensor.shape(), tensor.dtype(), Device::cuda(0));
  };
  MoeLayer layer(make_weights(2, true), {}, {});
  WorkspacePool pool;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {  // directly, and by way of workspaces
    const Tensor hidden = random_tensor({3, kHidden}, dtype, 7);
    const Tensor output = Tensor::zeros({3, kHidden}, dtype);
    const auto expect_refusal = [&](Parts parts, const Tensor& in, const Tensor& out) {
      expect_error(parts, [&] { layer.forward(in, out, {.workspaces = &pool}); });
    };
    expect_refusal({"device of hidden is cuda:0", "cpu"}, elsewhere(hidden), output);
    expect_refusal({"device of output is cuda:0", "cpu"}, hidden, elsewhere(output));
    expect_same_bits(output, Tensor::zeros({3, kHidden}, dtype));
  }
  EXPECT_EQ(pool.bytes(), 0);
}

}  // namespace
}  // namespace moebius::testing
