// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests what the router refuses, and that each message names the culprit with both values.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "moebius/error.h"
#include "moebius/router.h"
#include "tests/error_text.h"
#include "tests/scoped_setting.h"

namespace moebius {
namespace {

using testing::expect_mentions;
using testing::message_of;
using testing::ScopedSetting;

std::string refusal(const RouterConfig& config, const RouterWeights& weights = {}) {
  return message_of([&] { Router(config, weights); });
}

TEST(RouterErrors, ConfigsThatCannotWork) {
  expect_mentions(refusal({.num_experts = 0}), "num_experts is 0, expected at least 1");
  expect_mentions(refusal({.num_experts = 8, .topk = 0}), "topk is 0, expected at least 1");
  expect_mentions(refusal({.num_experts = 8, .topk = 9}), "topk is 9, expected at most 8");
  expect_mentions(refusal({.num_experts = 8, .num_groups = 0}), "num_groups is 0");
  expect_mentions(refusal({.num_experts = 8, .num_groups = 4, .topk_groups = 5}),
                  "topk_groups is 5, expected at most 4");
  expect_mentions(refusal({.num_experts = 8, .num_groups = 4, .topk_groups = 0}),
                  "topk_groups is 0, expected at least 1");
  expect_mentions(refusal({.num_experts = 8, .topk = 5, .num_groups = 4, .topk_groups = 2}),
                  "is 5, expected at most 4");
  for (const int64_t num_groups : {3, 5, 16}) {
    expect_mentions(refusal({.num_experts = 8, .topk = 2, .num_groups = num_groups}),
                    "num_experts, in num_groups groups, is 8, expected a multiple of " +
                        std::to_string(num_groups));
  }
  expect_mentions(refusal({.num_experts = 8, .topk = 3, .num_groups = 8, .topk_groups = 2}),
                  "is 3, expected at most 2");
  expect_mentions(refusal({.num_experts = 8, .routed_scaling_factor = NAN}),
                  "routed_scaling_factor is nan");
  expect_mentions(refusal({.num_experts = 8, .zipf_exponent = -1.0}), "zipf_exponent is -1");
  const auto mixer = [](RouterConfig config, const RouterWeights& weights = {}) {
    config.num_experts = 8;
    config.scoring = Scoring::kSparseMixer;
    return refusal(config, weights);
  };
  expect_mentions(mixer({.mixer_epsilon = -0.5f}), "mixer_epsilon is -0.5, expected a finite");
  expect_mentions(mixer({.num_groups = 2, .topk_groups = 2}),
                  "num_groups, with the sparse mixer, is 2, expected 1");
  expect_mentions(mixer({.score_after_topk = true}), "score_after_topk is true, expected false");
  expect_mentions(mixer({}, {.correction_bias = Tensor::zeros({8}, DType::kF32)}),
                  "correction_bias is given, expected none");
}

TEST(RouterErrors, SumsOfTensorCoresAreOfGpus) {
  RouterConfig config = {.num_experts = 8};
  config.logit_sums = LogitSums::kTensorCores;
  expect_mentions(message_of<Unsupported>([&] { Router(config, {}); }),
                  "logits summed by tensor cores on cpu: they are of GPUs");
}

TEST(RouterErrors, WeightsOfTheWrongShapeOrType) {
  const RouterConfig config = {.num_experts = 8};
  expect_mentions(refusal(config, {.gate = Tensor::zeros({7, 16}, DType::kF32)}),
                  "gate.dim(0) is 7, expected 8");
  expect_mentions(refusal(config, {.gate = Tensor::zeros({8, 0}, DType::kF32)}),
                  "gate.dim(1) is 0");
  expect_mentions(refusal(config, {.gate = Tensor::zeros({8}, DType::kF32)}),
                  "dimensions of gate is 1, expected 2");
  expect_mentions(refusal(config, {.gate = Tensor::zeros({8, 16}, DType::kI8)}),
                  "gate dtype is i8, expected f32, f16 or bf16");
  expect_mentions(refusal(config, {.bias = Tensor::zeros({9}, DType::kF32)}),
                  "shape of bias is [9], expected [8]");
  expect_mentions(refusal(config, {.correction_bias = Tensor::zeros({1, 8}, DType::kF32)}),
                  "shape of correction_bias is [1, 8], expected [8]");
  expect_mentions(refusal(config, {.expert_scale = Tensor::zeros({7}, DType::kF32)}),
                  "shape of expert_scale is [7], expected [8]");
}

TEST(RouterErrors, NaNInAWeightIsNamed) {
  const RouterConfig config = {.num_experts = 8};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Tensor gate = Tensor::zeros({8, 20}, dtype);
    set_float(gate, 3 * 20 + 17, std::numeric_limits<float>::quiet_NaN());
    expect_mentions(refusal(config, {.gate = gate}), "gate[3, 17] is NaN");
    const Tensor bias = Tensor::zeros({8}, dtype);
    set_float(bias, 5, std::numeric_limits<float>::quiet_NaN());
    expect_mentions(refusal(config, {.bias = bias}), "bias[5] is NaN");
    expect_mentions(refusal(config, {.correction_bias = bias}), "correction_bias[5] is NaN");
  }
}

TEST(RouterErrors, InfinityInAWeightIsNamed) {
  const RouterConfig config = {.num_experts = 8};
  const float inf = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const float value : {inf, -inf}) {
      const std::string expected = fmt::format("is {}, expected a finite number", value);
      const Tensor gate = Tensor::zeros({8, 20}, dtype);
      set_float(gate, 3 * 20 + 17, value);
      expect_mentions(refusal(config, {.gate = gate}), "gate[3, 17] " + expected);
      const Tensor bias = Tensor::zeros({8}, dtype);
      set_float(bias, 5, value);
      expect_mentions(refusal(config, {.bias = bias}), "bias[5] " + expected);
      if (value > 0) {  // -inf masks an expert
        expect_mentions(refusal(config, {.correction_bias = bias}),
                        "correction_bias[5] " + expected);
      } else {
        EXPECT_NO_THROW(Router(config, {.correction_bias = bias}));
      }
    }
  }
}

TEST(RouterErrors, ArgumentsOfLogits) {
  const Router router({.num_experts = 8}, {.gate = Tensor::zeros({8, 16}, DType::kBF16)});
  const Tensor hidden = Tensor::zeros({3, 16}, DType::kBF16);
  const auto call = [&](const Tensor& x, const Tensor& out) {
    return message_of([&] { router.logits(x, out, {}); });
  };
  EXPECT_EQ(call(hidden, Tensor::zeros({3, 8}, DType::kF32)), "no error");
  expect_mentions(call(Tensor::zeros({3, 17}, DType::kBF16), Tensor::zeros({3, 8}, DType::kF32)),
                  "hidden.dim(1) is 17, expected 16");
  expect_mentions(call(Tensor::zeros({3, 16}, DType::kI32), Tensor::zeros({3, 8}, DType::kF32)),
                  "hidden dtype is i32");
  expect_mentions(call(hidden, Tensor::zeros({4, 8}, DType::kF32)),
                  "shape of out is [4, 8], expected [3, 8]");
  expect_mentions(call(hidden, Tensor::zeros({3, 8}, DType::kBF16)),
                  "out dtype is bf16, expected f32");
  expect_mentions(call({}, Tensor::zeros({3, 8}, DType::kF32)), "hidden is missing");
  const Router without_gate({.num_experts = 8}, {});
  expect_mentions(message_of([&] {
                    without_gate.logits(hidden, Tensor::zeros({3, 8}, DType::kF32), {});
                  }),
                  "gate is missing");
}

TEST(RouterErrors, ArgumentsOfSelect) {
  const Router router({.num_experts = 8, .topk = 2}, {});
  const auto call = [&](const Tensor& logits, const Tensor& ids, const Tensor& weights) {
    return message_of([&] { router.select(logits, ids, weights, {}); });
  };
  const Tensor logits = Tensor::zeros({3, 8}, DType::kF32);
  const Tensor ids = Tensor::zeros({3, 2}, DType::kI32);
  const Tensor weights = Tensor::zeros({3, 2}, DType::kF32);
  EXPECT_EQ(call(logits, ids, weights), "no error");
  expect_mentions(call(Tensor::zeros({3, 9}, DType::kF32), ids, weights),
                  "logits.dim(1) is 9, expected 8");
  expect_mentions(call(Tensor::zeros({3, 8}, DType::kBF16), ids, weights),
                  "logits dtype is bf16, expected f32");
  expect_mentions(call(logits, Tensor::zeros({2, 2}, DType::kI32), weights),
                  "shape of ids is [2, 2], expected [3, 2]");
  EXPECT_EQ(call(logits, Tensor::zeros({3, 2}, DType::kI64), weights), "no error");
  expect_mentions(call(logits, Tensor::zeros({3, 2}, DType::kF32), weights),
                  "ids dtype is f32, expected i32 or i64");
  expect_mentions(call(logits, ids, Tensor::zeros({3, 3}, DType::kF32)),
                  "shape of weights is [3, 3], expected [3, 2]");
}

TEST(RouterErrors, TensorsOnAnotherDevice) {
  std::vector<float> memory(16);
  const Device gpu = Device::cuda(0);
  const Tensor logits = Tensor::borrow(memory.data(), {2, 8}, DType::kF32, gpu);
  const Router router({.num_experts = 8}, {});
  EXPECT_THROW(router.select(logits, Tensor::zeros({2, 1}, DType::kI32),
                             Tensor::zeros({2, 1}, DType::kF32), {}),
               InvalidArgument);
  EXPECT_THROW(Router({.num_experts = 2}, {.gate = logits}), InvalidArgument);
}

TEST(RouterErrors, WhatRunsOnTheCpuOnlyIsRefusedElsewhere) {
  RouterConfig config = {.num_experts = 4};
  config.device = Device::cuda(0);
  config.simulation = Simulation::kUniform;
  EXPECT_THROW(Router(config, {}), Unsupported);
  config.device = Device::cuda(99);
  config.simulation = Simulation::kNone;
  EXPECT_THROW(Router(config, {}), Unsupported);
}

TEST(RouterErrors, WhatACustomRoutingWritesIsChecked) {
  RouterConfig config = {.num_experts = 4, .topk = 2};
  int32_t id = 4;
  config.custom = [&id](const Tensor&, const Tensor& ids, const Tensor&) {
    std::fill_n(ids.data<int32_t>(), ids.numel() - 1, 0);
    if (id != 99) {  // 99 stands for "forgets the last slot"
      ids.data<int32_t>()[ids.numel() - 1] = id;
    }
  };
  const Router router(config, {});
  const Tensor logits = Tensor::zeros({2, 4}, DType::kF32);
  const Tensor ids = Tensor::zeros({2, 2}, DType::kI32);
  const Tensor weights = Tensor::zeros({2, 2}, DType::kF32);
  const auto call = [&] { router.select(logits, ids, weights, {}); };
  expect_mentions(message_of(call), "ids[1, 1] is 4, expected -1 <= id < 4");
  id = -2;
  expect_mentions(message_of(call), "ids[1, 1] is -2, expected -1 <= id < 4");
  id = 99;
  expect_mentions(message_of(call), "ids[1, 1] is -2");
  id = -1;
  EXPECT_EQ(message_of(call), "no error");
}

TEST(RouterErrors, AnUnknownForcedNameListsTheKnownOnes) {
  const ScopedSetting forced("MOEBIUS_ROUTER", "cuda_sm42");
  expect_mentions(refusal({.num_experts = 8}), {"cuda_sm42", "ref"});
}

TEST(RouterErrors, MoreExpertsThanTheVectorPathTakesFallToRef) {
  const Router router({.num_experts = 5000, .topk = 2}, {});
  EXPECT_EQ(router.implementation(), "ref");
  const ScopedSetting forced("MOEBIUS_ROUTER", "cpu_avx2");
  EXPECT_THROW(Router({.num_experts = 5000, .topk = 2}, {}), Error);
}

}  // namespace
}  // namespace moebius
