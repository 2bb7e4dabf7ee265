// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// NaN and infinity in stored weights are refused with their place, or come out as NaN.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "tests/checkpoint/bad_tensors.h"
#include "tests/checkpoint/nonfinite_outputs.h"
#include "tests/scoped_setting.h"

namespace moebius::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class NonfiniteWeights : public BadTensors {
 protected:
  // Expects a refusal that names the place, also of the weights' own kind of loading.
  void expect_refused(const std::string& name,
                      int64_t element,
                      float value,
                      const std::string& place,
                      const LoadOptions& options = {}) {
    const Tensor good = at(block_ + name).clone();
    set_float(at(block_ + name), element, value);
    expect_mentions(refusal(options), {"model.safetensors: tensor '" + block_ + name + "' is " +
                                       place + ", expected a finite number"});
    at(block_ + name) = good;
  }
};

TEST_F(NonfiniteWeights, OfExpertsAreRefusedHoweverTheyAreLoaded) {
  std::vector<std::string> quants = {"auto", "none"};
  for (const QuantSchemeInfo& scheme : load_quant_schemes()) {
    quants.push_back(scheme.name);
  }
  nlohmann::json config = small_config("qwen3_moe");
  config["hidden_size"] = config["moe_intermediate_size"] = 128;
  make_from(config);
  for (const std::string& quant : quants) {
    SCOPED_TRACE(quant);
    expect_refused("experts.2.gate_proj.weight", 128 + 5, kNan, "NaN at [1, 5]", {.quant = quant});
    expect_refused("experts.3.up_proj.weight", 128 * 128 - 1, kInfinity, "inf at [127, 127]",
                   {.quant = quant});
    expect_refused("experts.0.down_proj.weight", 0, -kInfinity, "-inf at [0, 0]", {.quant = quant});
  }
}

TEST_F(NonfiniteWeights, OfEveryFloatTypeAreRefused) {
  for (const char* dtype : {"bfloat16", "float16", "float32"}) {
    nlohmann::json config = small_config("deepseek_v3");
    config["dtype"] = dtype;
    make_from(config);
    expect_refused("experts.1.up_proj.weight", 64 * 3 + 63, kNan, "NaN at [3, 63]");
    expect_refused("shared_experts.down_proj.weight", 33, kInfinity, "inf at [1, 1]");
    expect_refused("gate.weight", 64 * 2 + 1, kNan, "NaN at [2, 1]");
    expect_refused("gate.e_score_correction_bias", 3, kInfinity, "inf at [3]");
  }
  make("qwen2_moe");
  expect_refused("shared_expert_gate.weight", 7, kNan, "NaN at [0, 7]");
}

// gpt_oss and llama4 store [E, K, N]; the place is that of the file.
TEST_F(NonfiniteWeights, OfFusedExpertsAreNamedByTheirPlaceInTheFile) {
  make("gpt_oss");
  for (const char* quant : {"auto", "int8_w8a8"}) {
    expect_refused("experts.gate_up_proj", (2 * 64 + 7) * 64 + 9, kNan, "NaN at [2, 7, 9]",
                   {.quant = quant});
    expect_refused("experts.down_proj", (3 * 32 + 31) * 64 + 63, kInfinity, "inf at [3, 31, 63]",
                   {.quant = quant});
    expect_refused("experts.gate_up_proj_bias", 64 + 11, kNan, "NaN at [1, 11]", {.quant = quant});
    expect_refused("experts.down_proj_bias", 2 * 64, kNan, "NaN at [2, 0]", {.quant = quant});
  }
  expect_refused("router.bias", 2, kNan, "NaN at [2]");
}

TEST_F(NonfiniteWeights, OfQuantizedCheckpointsAreRefused) {
  make("qwen3_moe_fp8");
  expect_refused("experts.2.down_proj.weight", 32 * 5 + 3, kNan, "NaN at [5, 3]");
  expect_refused("experts.2.down_proj.weight_scale_inv", 1, kInfinity, "inf at [0, 1]");
  make("qwen3_moe_fp8_channel");
  expect_refused("experts.1.up_proj.weight", 64 * 31, kNan, "NaN at [31, 0]");
  make("qwen3_moe_int4");
  expect_refused("experts.1.up_proj.weight_scale", 4 * 3 + 2, kNan, "NaN at [3, 2]");
}

TEST_F(NonfiniteWeights, OnlyWhatARankTakesIsLookedAt) {
  make("qwen3_moe");
  set_float(at(block_ + "experts.3.up_proj.weight"), 64 * 31, kNan);
  expect_mentions(refusal({.ep_size = 2, .ep_rank = 1}),
                  "experts.3.up_proj.weight' is NaN at [31, 0]");
  const Checkpoint checkpoint(dir_.path());
  checkpoint.load_layer(1, {.ep_size = 2, .ep_rank = 0});
  checkpoint.load_layer(1, {.tp_size = 2, .tp_rank = 0});  // its rows are [0, 16)
}

TEST_F(NonfiniteWeights, OfACorrectionBiasMayMaskExperts) {
  make("deepseek_v3");
  set_float(at(block_ + "gate.e_score_correction_bias"), 1, -kInfinity);
  write_safetensors(dir_ / "model.safetensors", tensors_);
  EXPECT_EQ(get_float(Checkpoint(dir_.path()).load_layer(1).router.correction_bias, 1), -kInfinity);
}

TEST_F(NonfiniteWeights, PassWhereTheCallerOrTheSettingSaysSo) {
  make("qwen3_moe");
  set_float(at(block_ + "experts.1.up_proj.weight"), 70, kNan);
  expect_mentions(refusal(), "with MOEBIUS_ALLOW_NONFINITE=1 the expert's outputs are NaN");
  const Checkpoint checkpoint(dir_.path());
  const auto value = [&](std::optional<bool> allow) {
    LoadOptions options;
    options.allow_nonfinite = allow;
    return get_float(checkpoint.load_layer(1, options).experts.w1, (64 + 32) * 64 + 70);
  };
  EXPECT_TRUE(std::isnan(value(true)));  // unquantized weights stay what they are
  const ScopedSetting setting("MOEBIUS_ALLOW_NONFINITE", "1");
  EXPECT_TRUE(std::isnan(value(std::nullopt)));
  EXPECT_THROW(value(false), InvalidArgument);
}

// Routers rank NaN last and give finite weights, so that nothing would tell of it.
TEST_F(NonfiniteWeights, OfRoutersAreRefusedEvenThen) {
  make("qwen3_moe");
  set_float(at(block_ + "gate.weight"), 64 * 2 + 1, kNan);
  expect_mentions(refusal({.allow_nonfinite = true}), "gate.weight' is NaN at [2, 1]");
}

class NonfiniteOutputs : public ::testing::TestWithParam<Damage> {};

TEST_P(NonfiniteOutputs, AreNanInEverySchemeAndImplementation) {
  const TempDir dir;
  write_damaged_model(dir.path(), GetParam());
  const Checkpoint checkpoint(dir.path());
  for (const QuantSchemeInfo& scheme : load_quant_schemes()) {
    SCOPED_TRACE(scheme.name);
    EXPECT_GE(expect_nan_outputs(checkpoint, scheme.name, Stream::cpu(1)), 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Damages, NonfiniteOutputs, ::testing::ValuesIn(kDamages));

// A quantized checkpoint: NaN in codes of fp8, and infinity in scales of int8.
TEST_F(NonfiniteWeights, OfQuantizedCheckpointsComeOutAsNan) {
  for (const auto& [model, name, index] :
       {std::tuple{"qwen3_moe_fp8", "experts.1.gate_proj.weight", 100},
        {"qwen3_moe_fp8", "experts.1.down_proj.weight", 100},
        {"qwen3_moe_fp8_channel", "experts.1.up_proj.weight", 77},
        {"qwen3_moe_int8", "experts.1.gate_proj.weight_scale", 3},
        {"qwen3_moe_int4", "experts.1.up_proj.weight_scale", 3},
        {"qwen3_moe_nvfp4", "experts.1.gate_proj.weight_scale", 3}}) {
    SCOPED_TRACE(std::string(model) + " " + name);
    nlohmann::json config = small_config(model);
    config["mlp_only_layers"] = nlohmann::json::array();
    make_from(config);
    for (auto& [key, tensor] : tensors_) {
      if (key == "model.layers.0.mlp." + std::string(name)) {
        set_float(tensor, index, kInfinity);
        if (tensor.dtype() == DType::kF8E4M3) {
          tensor.data<uint8_t>()[index] = 0xff;
        }
      }
    }
    write_safetensors(dir_ / "model.safetensors", tensors_);
    for (const char* quant : {"auto", "none"}) {
      EXPECT_GE(expect_nan_outputs(Checkpoint(dir_.path()), quant, Stream::cpu(1)), 1);
    }
  }
}

}  // namespace
}  // namespace moebius::testing
