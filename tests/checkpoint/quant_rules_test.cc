// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Which modules the rules of quantization_config are about, and what a layer then loads.
#include "checkpoint/quant_rules.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "checkpoint/model_config.h"
#include "tests/checkpoint/bad_tensors.h"

namespace moebius::testing {
namespace {

using checkpoint::ConfigFields;
using checkpoint::QuantRules;
using checkpoint::WeightScheme;
using nlohmann::json;

const std::string kExpert = "model.layers.3.mlp.experts.7.gate_proj";

// The name of the module's scheme.
std::string scheme_of(const json& quantization,
                      const std::string& module,
                      const std::string& expert_dtype = "") {
  return checkpoint::read_quant_rules(ConfigFields(quantization, "config.json", "q."), expert_dtype)
      .of(module)
      .name;
}

// The name of the expert's scheme where `key` of a small quantization lists these entries.
auto schemes_with(const char* method, const char* key) {
  return [key, quantization = small_quantization(method)](json entries) mutable {
    quantization[key] = std::move(entries);
    return scheme_of(quantization, kExpert);
  };
}

TEST(QuantRulesTest, CompressedTensorsIgnoresNamesAndPatterns) {
  auto with = schemes_with("fp8_channel", "ignore");
  const std::string fp8 = "compressed-tensors fp8";
  EXPECT_EQ(with(json::array()), fp8);
  EXPECT_EQ(with({kExpert}), "none, by ignore '" + kExpert + "'");
  EXPECT_EQ(with({"gate_proj"}), fp8);  // names are whole
  EXPECT_EQ(with({"re:.*gate_proj"}), "none, by ignore 're:.*gate_proj'");
  EXPECT_EQ(with({"re:.*gate$"}), fp8);
  EXPECT_EQ(with({"re:gate_proj"}), fp8);  // patterns begin where the name does
  EXPECT_EQ(with({"re:^(?!.*experts).*"}), fp8);
  EXPECT_EQ(with({"lm_head", R"(re:model\.layers\.[0-3]\..*)"}),
            R"(none, by ignore 're:model\.layers\.[0-3]\..*')");
}

TEST(QuantRulesTest, CompressedTensorsTargetsNameTheirModules) {
  json quantization = small_quantization("int4");
  json& groups = quantization["config_groups"];
  groups["group_1"] = groups["group_0"];
  groups["group_1"]["targets"] = {"re:.*layers.3.*"};
  groups["group_1"]["weights"]["num_bits"] = 8;
  EXPECT_EQ(scheme_of(quantization, kExpert), "compressed-tensors int8");
  EXPECT_EQ(scheme_of(quantization, "model.layers.4.mlp.experts.7.gate_proj"),
            "compressed-tensors int4");
  // Names count before the class, whatever the groups are called.
  std::swap(groups["group_0"], groups["group_1"]);
  EXPECT_EQ(scheme_of(quantization, kExpert), "compressed-tensors int8");
  groups["group_0"]["targets"] = {"Linear"};
  expect_mentions(message_of<Unsupported>([&] { scheme_of(quantization, kExpert); }),
                  {"config.json: q.config_groups.group_1.targets", "Linear"});
}

TEST(QuantRulesTest, ModulesToNotConvertAreStartsPatternsOrEnds) {
  auto with = schemes_with("fp8", "modules_to_not_convert");
  EXPECT_EQ(with({"model.layers.3.mlp"}), "none, by modules_to_not_convert 'model.layers.3.mlp'");
  EXPECT_EQ(with({"gate_proj"}), "none, by modules_to_not_convert 'gate_proj'");
  EXPECT_EQ(with({"model.layers.[0-3].mlp"}),
            "none, by modules_to_not_convert 'model.layers.[0-3].mlp'");
  EXPECT_EQ(with({"gate"}), "fp8");
  EXPECT_EQ(with({"layers.3.mlp"}), "fp8");
  EXPECT_EQ(with({"model.layers.3.self_attn"}), "fp8");
}

TEST(QuantRulesTest, ModeloptExcludesByGlobs) {
  auto with = schemes_with("modelopt_fp8", "ignore");
  EXPECT_EQ(with({"model.layers.3*"}), "none, by ignore 'model.layers.3*'");
  EXPECT_EQ(with({"model.layers.3.mlp"}), "none, by ignore 'model.layers.3.mlp'");
  EXPECT_EQ(with({"*gate"}), "modelopt fp8");
  EXPECT_EQ(with({"model.layers.?.mlp.shared*"}), "modelopt fp8");
  const json quantization = {
      {"quant_method", "modelopt"},
      {"quant_algo", "MIXED_PRECISION"},
      {"quantized_layers",
       {{"model.layers.2.mlp.experts*", {{"quant_algo", "FP8"}}},
        {"model.layers.3.mlp.experts*", {{"quant_algo", "NVFP4"}, {"group_size", 16}}}}}};
  EXPECT_EQ(scheme_of(quantization, kExpert), "nvfp4");
  EXPECT_EQ(scheme_of(quantization, "model.layers.2.mlp.experts.7.gate_proj"), "modelopt fp8");
}

TEST(QuantRulesTest, GptqRulesReplaceFieldsOrLeaveOut) {
  json quantization = small_quantization("gptq");
  quantization["dynamic"] = {{R"(+:.*\.3\..*)", {{"bits", 8}, {"group_size", 32}}},
                             {R"(-:.*\.4\..*)", json::object()}};
  EXPECT_EQ(scheme_of(quantization, kExpert), "gptq int8");
  EXPECT_EQ(scheme_of(quantization, "model.layers.5.mlp.experts.0.up_proj"), "gptq int4");
  EXPECT_EQ(scheme_of(quantization, "model.layers.4.mlp.experts.0.up_proj"),
            R"(none, by dynamic '-:.*\.4\..*')");
  // JSON objects have no order, so that two rules for a module must agree.
  quantization["dynamic"]["-:.*gate_proj"] = json::object();
  expect_mentions(message_of<Unsupported>([&] { scheme_of(quantization, kExpert); }),
                  {kExpert, "dynamic '+:", "dynamic '-:.*gate_proj'"});
}

TEST(QuantRulesTest, Fp4ExpertsAreRoutedOnes) {
  const json quantization = small_quantization("fp8");
  EXPECT_EQ(scheme_of(quantization, kExpert, "fp4"), "mxfp4");
  EXPECT_EQ(scheme_of(quantization, "model.layers.3.mlp.shared_experts.up_proj", "fp4"), "fp8");
}

// A name that a backtracking matcher would try in 2^50 ways.
TEST(QuantRulesTest, PatternsTakePolynomialTime) {
  json quantization = small_quantization("int4");
  quantization["ignore"] = {"re:(a*)*(a|a)*(a*a*)*b"};
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(scheme_of(quantization, std::string(50, 'a')), "compressed-tensors int4");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  quantization["ignore"] = {"re:" + std::string(1001, 'a')};
  expect_mentions(message_of<Unsupported>([&] { scheme_of(quantization, "a"); }),
                  {"q.ignore", "has 1001 characters, supported: up to 1000"});
}

class LayerRules : public BadTensors {};

TEST_F(LayerRules, WhatARuleLeavesOutMustBeUnquantized) {
  json config = small_config("qwen3_moe_int8");
  make_from(config);
  config["quantization_config"]["ignore"] = {"re:.*experts.*"};
  write_text(dir_ / "config.json", config.dump());
  expect_mentions(refusal(), {"model.safetensors: tensor 'model.layers.1.mlp.experts.0.gate_proj",
                              "has dtype I8, expected BF16, F16 or F32",
                              "(quantization: none, by ignore 're:.*experts.*')"});
}

TEST_F(LayerRules, OneProjectionInAnotherFormatIsRefused) {
  json config = small_config("qwen3_moe_gptq");
  make_from(config);
  config["quantization_config"]["dynamic"] = {{"+:.*down_proj", {{"bits", 8}}}};
  write_text(dir_ / "config.json", config.dump());
  expect_mentions(refusal<Unsupported>(),
                  {"config.json", "experts.0.gate_proj' gptq int4",
                   "experts.0.down_proj' gptq int8", "one format for the experts of a layer"});
}

TEST_F(LayerRules, ActOrderIsRefusedWhereColumnsOfAGroupAreApart) {
  make("qwen3_moe_gptq_order");
  int32_t* groups = at(block_ + "experts.2.up_proj.g_idx").data<int32_t>();
  std::swap(groups[3], groups[40]);
  expect_mentions(
      refusal<Unsupported>(),
      {"experts.2.up_proj.g_idx' is 0 at [2] and 2 at [3] (act-order)", "groups of 16 columns"});
  groups[3] = 4;
  expect_mentions(refusal(), "experts.2.up_proj.g_idx' is 4 at [3], expected 0 to 3");
}

TEST_F(LayerRules, SymmetricGptqHasTheMiddleAsZeroPoint) {
  make("qwen3_moe_gptq");
  at(block_ + "experts.1.down_proj.qzeros").data<int32_t>()[9] = 0x77778777;
  expect_mentions(refusal(), {"experts.1.down_proj.qzeros' holds the zero point 8 of row 11 and "
                              "group 1, expected 7",
                              "sym true"});
  remove(block_ + "experts.1.down_proj.qzeros");  // some publishers leave them out
  write_safetensors(dir_ / "model.safetensors", tensors_);
  EXPECT_FALSE(Checkpoint(dir_.path()).load_layer(1).experts.quant.w1.zero_point);
}

TEST_F(LayerRules, ZeroPointsThatDoNotFitAByteAreRefused) {
  json config = small_config("qwen3_moe_gptq8");
  make_from(config);
  config["quantization_config"]["sym"] = false;
  write_text(dir_ / "config.json", config.dump());
  at(block_ + "experts.0.up_proj.qzeros").data<int32_t>()[0] = -1;
  expect_mentions(refusal(), {"experts.0.up_proj.qzeros' holds the zero point 255 of row 0",
                              "expected 0 to 254"});
}

}  // namespace
}  // namespace moebius::testing
