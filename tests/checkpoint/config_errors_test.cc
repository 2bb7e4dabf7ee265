// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The forms of config.json that are read.  Errors name file, field and both values in one line.
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "checkpoint/model_config.h"
#include "moebius/checkpoint.h"
#include "tests/by_name.h"
#include "tests/checkpoint/checkpoint_testing.h"
#include "tests/checkpoint/small_models.h"

namespace moebius::testing {
namespace {

using nlohmann::json;

// A model whose config.json has another value in one field.
struct BadConfig {
  const char* name;
  const char* model;
  std::string field;  // JSON pointer without the first slash
  json value;         // null: the field is removed
  // A part of the message.  Unsupported says what is supported, InvalidArgument what is expected.
  std::string message;
};

void PrintTo(const BadConfig& bad, std::ostream* out) {
  *out << bad.name;
}

const std::string kQuant = "quantization_config/";
const std::string kGroup = kQuant + "config_groups/group_0/";

const BadConfig kBadConfigs[] = {
    {"NoModelType", "qwen3_moe", "model_type", nullptr, "model_type is missing"},
    {"UnknownFamily", "qwen3_moe", "model_type", "llama",
     R"(model_type is "llama", supported: mixtral, qwen2_moe)"},
    {"HiddenZero", "qwen3_moe", "hidden_size", 0, "hidden_size is 0, expected an integer in [1, "},
    {"HiddenNegative", "qwen3_moe", "hidden_size", -64, "hidden_size is -64, expected"},
    {"HiddenHuge", "qwen3_moe", "hidden_size", 18446744073709551615u,
     "hidden_size is 18446744073709551615, expected"},
    {"HiddenText", "qwen3_moe", "hidden_size", "64", R"(hidden_size is "64", expected)"},
    {"HiddenFraction", "qwen3_moe", "hidden_size", 64.5, "hidden_size is 64.5, expected"},
    {"NoExperts", "dots1", "n_routed_experts", nullptr,
     "num_experts or num_local_experts or n_routed_experts or moe_num_experts is missing"},
    {"TwoExpertCounts", "qwen3_moe", "num_local_experts", 5,
     "num_experts is 4, but num_local_experts is 5"},
    {"TopkAboveExperts", "qwen3_moe", "num_experts_per_tok", 5,
     "num_experts_per_tok is 5, expected at most the 4 experts"},
    {"NoIntermediate", "gemma4", "moe_intermediate_size", nullptr,
     "moe_intermediate_size is missing"},
    {"DefaultTopkAboveExperts", "qwen3_moe", "num_experts_per_tok", nullptr,
     "num_experts_per_tok is missing, which means 8, expected at most the 4 experts"},
    {"SizesThatDiffer",
     "hunyuan_v1_moe",
     "moe_topk",
     {2, 1},
     "moe_topk is [2,1], supported: an integer, or a list of equal integers"},
    {"LayerWithoutAType",
     "glm4_moe_lite",
     "mlp_layer_types",
     {"dense"},
     R"(mlp_layer_types is ["dense"], expected a value for layer 1)"},
    {"TypesAreNumbers",
     "glm4_moe_lite",
     "mlp_layer_types",
     {0, 1},
     "mlp_layer_types is [0,1], expected a list of strings"},
    {"LatentExperts", "nemotron_h", "moe_latent_size", 32,
     "moe_latent_size is 32, supported: null"},
    {"GatedNemotron", "nemotron_h", "mlp_hidden_act", "silu",
     R"(mlp_hidden_act is "silu", supported: relu2)"},
    {"MixerOfThree", "phimoe", "num_experts_per_tok", 3, "num_experts_per_tok is 3, supported: 2"},
    {"CappedLogits", "laguna", "moe_router_logit_softcapping", 30.0,
     "moe_router_logit_softcapping is 30.0, supported: 0"},
    {"ExpertBiases", "ernie4_5_moe", "use_bias", true, "use_bias is true, supported: false"},
    {"UnknownSum", "cohere2_moe", "shared_expert_combination_strategy", "max",
     R"(shared_expert_combination_strategy is "max", supported: average, sum)"},
    {"TopkGroupsAboveGroups", "deepseek_v3", "topk_group", 3,
     "topk_group is 3, expected at most n_group, 2"},
    {"GroupsThatDoNotDivide", "deepseek_v3", "n_group", 3,
     "n_group is 3, expected a divisor of the 4 experts"},
    {"MoreGroupsThanExperts", "deepseek_v3", "n_group", 8,
     "n_group is 8, expected a divisor of the 4 experts"},
    {"TopkAboveEligible", "deepseek_v3", "num_experts_per_tok", 3,
     "num_experts_per_tok is 3, expected at most the 2 experts of 1 groups"},
    {"UnknownTopkMethod", "deepseek_v3", "topk_method", "best",
     R"(topk_method is "best", supported: greedy, group_limited_greedy, noaux_tc)"},
    {"UnknownScoring", "deepseek_v3", "scoring_func", "relu", R"(is "relu", supported: softmax)"},
    {"UnknownActivation", "qwen3_moe", "hidden_act", "tanh",
     R"(hidden_act is "tanh", supported: )"},
    {"UnknownDtype", "qwen3_moe", "dtype", "float64", R"(dtype is "float64", supported: bfloat16)"},
    {"BooleanIsANumber", "qwen3_moe", "norm_topk_prob", 1,
     "norm_topk_prob is 1, expected true or false"},
    {"ScaleIsText", "deepseek_v3", "routed_scaling_factor", "2",
     R"(routed_scaling_factor is "2", expected a number)"},
    {"ScaleBeyondFloat", "deepseek_v3", "routed_scaling_factor", 1e39,
     "routed_scaling_factor is 1e+39, expected a number in the range of float"},
    {"LimitIsNegative", "gpt_oss", "swiglu_limit", -7.0,
     "swiglu_limit is -7.0, expected a number above 0"},
    {"LimitIsText", "gpt_oss", "swiglu_limit", "7", R"(swiglu_limit is "7", expected a number)"},
    {"HiddenBeyond64Bits", "qwen3_moe", "hidden_size", 1e20,
     "hidden_size is 1e+20, expected an integer in [1, "},
    {"DenseLayersNegative", "deepseek_v3", "first_k_dense_replace", -1,
     "first_k_dense_replace is -1, expected an integer in [0, "},
    {"LayersNotAList", "qwen3_moe", "mlp_only_layers", 3,
     "mlp_only_layers is 3, expected a list of integers"},
    {"LayerOutside",
     "llama4",
     "moe_layers",
     {0, 2},
     "moe_layers is [0,2], expected a list of integers in [0, 1]"},
    {"UnknownMethod", "qwen3_moe_fp8", kQuant + "quant_method", "hqq",
     R"(quantization_config.quant_method is "hqq", supported: fp8, compressed-tensors, gptq, awq, )"},
    {"NoMethod", "qwen3_moe_fp8", kQuant + "quant_method", nullptr,
     "quantization_config.quant_method is missing"},
    {"QuantizationIsText", "qwen3_moe", "quantization_config", "fp8",
     R"(quantization_config is "fp8", expected an object)"},
    {"Fp8BlockOfZero",
     "qwen3_moe_fp8",
     kQuant + "weight_block_size",
     {0, 128},
     "weight_block_size is [0,128], expected"},
    {"Fp8ThreeDimensions",
     "qwen3_moe_fp8",
     kQuant + "weight_block_size",
     {1, 1, 1},
     "weight_block_size is [1,1,1], expected 2 integers"},
    {"Fp8Static", "qwen3_moe_fp8", kQuant + "activation_scheme", "static",
     R"(activation_scheme is "static", supported: dynamic with weight_block_size)"},
    {"Fp8UnknownScaleFormat", "qwen3_moe_fp8", kQuant + "scale_fmt", "e5m3",
     R"(scale_fmt is "e5m3", supported: float, ue8m0)"},
    {"Int4ActivationOrder", "qwen3_moe_int4", kGroup + "weights/actorder", "group",
     R"(actorder is "group", supported: )"},
    {"Int4Tensor", "qwen3_moe_int4", kGroup + "weights/strategy", "tensor",
     "supported: int in 4 or 8 bits by groups or channels (pack-quantized)"},
    {"Rotated", "qwen3_moe_int4", kQuant + "transform_config/config_groups/u", 1,
     R"(transform_config is {"config_groups":{"u":1}}, supported: {})"},
    {"Sparse", "qwen3_moe_int4", kQuant + "sparsity_config/format", "sparse-24-bitmask",
     R"(sparsity_config.format is "sparse-24-bitmask", supported: dense)"},
    {"OtherPacking", "qwen3_moe_int4", kQuant + "format", "marlin-24",
     "supported: int in 4 or 8 bits by groups or channels (pack-quantized)"},
    {"Int4OddGroups", "qwen3_moe_int4", kGroup + "weights/group_size", 3,
     "config_groups.group_0.weights.group_size is 3, supported: multiples of 2"},
    {"ThreeBits", "qwen3_moe_int4", kGroup + "weights/num_bits", 3,
     R"("num_bits":3,"strategy":"group","symmetric":true,"type":"int"}, supported: int in 4 or 8 bits)"},
    {"Int4Activations",
     "qwen3_moe_int4",
     kGroup + "input_activations",
     {{"num_bits", 8}},
     R"(input_activations is {"num_bits":8}, supported: null with packed weights)"},
    {"Int8StaticActivations", "qwen3_moe_int8", kGroup + "input_activations/dynamic", false,
     "supported: null, or 8-bit int, symmetric, dynamic per token"},
    {"NoGroups", "qwen3_moe_int8", kQuant + "config_groups/group_0", nullptr,
     "config_groups is {}, expected at least one group"},
    {"ModeloptOther", "qwen3_moe_nvfp4", kQuant + "quant_algo", "W4A8_AWQ",
     R"("W4A8_AWQ", supported: NVFP4, )"},
    {"GptqThreeBits", "mixtral_gptq", kQuant + "bits", 3, "bits is 3, supported: 4, 8"},
    {"GptqMarlin", "mixtral_gptq", kQuant + "checkpoint_format", "marlin",
     R"(checkpoint_format is "marlin", supported: gptq, gptq_v2)"},
    {"GptqOddGroups", "mixtral_gptq", kQuant + "group_size", 5,
     "group_size is 5, supported: multiples of 2"},
    {"AwqEightBits", "mixtral_awq", kQuant + "bits", 8, "bits is 8, supported: 4"},
    {"AwqGemv", "mixtral_awq", kQuant + "version", "gemv", R"(version is "gemv", supported: gemm)"},
    {"BadPattern",
     "qwen3_moe_int4",
     kQuant + "ignore",
     {"re:(x"},
     "ignore 're:(x' is not a regular expression that can be read, supported: those of "},
    {"IgnoreIsText", "qwen3_moe_int4", kQuant + "ignore", "lm_head",
     R"(ignore is "lm_head", expected a list of strings)"},
};

class BadConfigs : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigs, AreRefusedWithFileAndField) {
  const TempDir dir;
  json config = small_config(GetParam().model);
  write_small_model(config, dir);
  json patch;
  patch[json::json_pointer("/" + GetParam().field)] = GetParam().value;
  config.merge_patch(patch);
  write_text(dir / "config.json", config.dump());
  const auto open = [&] { Checkpoint checkpoint(dir.path()); };
  const bool is_unsupported = GetParam().message.find("supported: ") != std::string::npos;
  const std::string message = is_unsupported ? message_of<Unsupported>(open) : message_of(open);
  expect_mentions(message, {(dir / "config.json").string(), GetParam().message});
}

INSTANTIATE_TEST_SUITE_P(Config, BadConfigs, ::testing::ValuesIn(kBadConfigs), by_name);

TEST(BadConfigFiles, AreRefused) {
  const TempDir dir;
  const auto refusal = [&] { return message_of([&] { Checkpoint checkpoint(dir.path()); }); };
  expect_mentions(refusal(), "config.json: No such file");
  for (const char* text : {"", "{", "{\"a\": }", "\xff"}) {
    write_text(dir / "config.json", text);
    expect_mentions(refusal(), "config.json: not valid JSON at byte");
  }
  write_text(dir / "config.json", "[1]");
  expect_mentions(refusal(), "config.json: a JSON array, expected an object");
  write_text(dir / "config.json", small_config("qwen3_moe").dump());
  expect_mentions(refusal(), "has neither model.safetensors nor");
}

// The rest of the message after the name of the file.
std::string refusal_of_text(const std::string& text) {
  const TempDir dir;
  write_text(dir / "config.json", text);
  const std::string message = message_of([&] { Checkpoint checkpoint(dir.path()); });
  const std::string file = (dir / "config.json").string() + ": ";
  EXPECT_TRUE(message.starts_with(file)) << message;
  return message.substr(std::min(file.size(), message.size()));
}

TEST(BadConfigFiles, NumbersBeyondDoubleAreRefusedWithTheirKey) {
  const std::string expected = ", expected a number in the range of double";
  EXPECT_EQ(refusal_of_text(R"({"rope_theta": 1e400})"), "rope_theta is 1e400" + expected);
  EXPECT_EQ(refusal_of_text(R"({"a": [{"b": 1}, {"c": [1, [], -1e999]}]})"),
            "a[1].c[2] is -1e999" + expected);
  EXPECT_EQ(refusal_of_text("1e400"), " is 1e400" + expected);
  EXPECT_EQ(refusal_of_text(R"({"rope_theta": 1)" + std::string(5000, '0') + "}"),
            "rope_theta is 1" + std::string(79, '0') + "..." + expected);
  EXPECT_EQ(refusal_of_text(R"({"\u001b[2J\n": 1e400})"), R"(\x1b[2J\x0a is 1e400)" + expected);
}

TEST(BadConfigFiles, TheKeyBeforeASyntaxErrorIsNamed) {
  EXPECT_EQ(refusal_of_text(R"({"a": 1, "rope_theta": NaN})"),
            "not valid JSON at byte 24, at or after rope_theta");
  EXPECT_EQ(refusal_of_text(R"({"a": {"b": [0, 0 0]}})"),
            "not valid JSON at byte 19, at or after a.b[2]");
  EXPECT_EQ(refusal_of_text("{\"a\": \"\xff\"}"), "not valid JSON at byte 8, at or after a");
  EXPECT_EQ(refusal_of_text(R"({"a": 1} 2)"), "not valid JSON at byte 10");
}

// Why a limit: readers recurse over the document, and their stack is bounded.
TEST(BadConfigFiles, NestedDeeperThan64AreRefused) {
  const TempDir dir;
  const auto refusal = [&](const char* open, const char* close, size_t depth) {
    std::string text = R"({"hidden_act": "silu", "model_type": )";
    for (size_t i = 1; i < depth; ++i) {
      text += open;
    }
    text += "0";
    for (size_t i = 1; i < depth; ++i) {
      text += close;
    }
    write_text(dir / "config.json", text + "}");
    return message_of([&] { Checkpoint checkpoint(dir.path()); });
  };
  expect_mentions(refusal("[", "]", 64), "model_type is [[[");
  for (const size_t depth : {size_t{65}, size_t{100'000}}) {
    expect_mentions(refusal("[", "]", depth), "config.json: JSON nested 65 deep, the limit is 64");
    expect_mentions(refusal("{\"a\":", "}", depth), "nested 65 deep");
  }
}

TEST(ConfigForms, TextConfigAndTorchDtypeAreRead) {
  const TempDir dir;
  json config = small_config("llama4");
  write_small_model(config, dir);
  config.erase("dtype");
  const json outer = {
      {"model_type", "llama4"}, {"torch_dtype", "float16"}, {"text_config", config}};
  write_text(dir / "config.json", outer.dump());
  const Checkpoint checkpoint(dir.path());
  EXPECT_EQ(checkpoint.info().family, "llama4");
  EXPECT_EQ(checkpoint.info().moe_layers, std::vector<int64_t>{1});
  EXPECT_EQ(checkpoint.load_layer(1).config.in_dtype, DType::kF16);
}

TEST(ConfigForms, LayersAreListedInAnyOrder) {
  json config = small_config("qwen3_moe");
  config.update({{"num_hidden_layers", 6}, {"mlp_only_layers", {4, 0, 4, 3, 9}}});
  EXPECT_EQ(checkpoint::parse_model_config(config, "x").info.moe_layers,
            (std::vector<int64_t>{1, 2, 5}));
  config = small_config("llama4");
  config.update({{"num_hidden_layers", 6}, {"moe_layers", {4, 0, 4, 3}}});
  EXPECT_EQ(checkpoint::parse_model_config(config, "x").info.moe_layers,
            (std::vector<int64_t>{0, 3, 4}));
}

// This would take minutes if every layer searched the whole list.
TEST(ConfigForms, ManyLayersAreFoundInALongList) {
  json config = small_config("qwen3_moe");
  config["num_hidden_layers"] = 1 << 16;
  json layers = json::array();
  for (int layer = 2'000'000; layer > 0; --layer) {
    layers.push_back(layer);
  }
  config["mlp_only_layers"] = std::move(layers);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(checkpoint::parse_model_config(config, "x").info.moe_layers, std::vector<int64_t>{0});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

// The router's default is 8 groups, of which 4 are open.
TEST(ConfigForms, MissingGroupsAreRefusedWithTheirDefault) {
  const auto refusal = [](const char* missing, int num_groups) {
    json config = small_config("deepseek_v3");
    config.update({{"n_group", num_groups}, {"topk_group", 1}});
    config.erase(missing);
    return message_of([&] { checkpoint::parse_model_config(config, "x"); });
  };
  EXPECT_EQ(refusal("n_group", 0),
            "x: n_group is missing, which means 8, expected a divisor of the 4 experts");
  EXPECT_EQ(refusal("topk_group", 2),
            "x: topk_group is missing, which means 4, expected at most n_group, 2");
}

// Defaults are those of the configuration classes in transformers.
TEST(ConfigForms, SharedExpertsThatAreNotNamedAreThere) {
  for (const auto& [family, expected] :
       {std::pair("deepseek_v2", 2), {"deepseek_v3", 1}, {"glm4_moe", 1}}) {
    json config = small_config(family);
    config.erase("n_shared_experts");
    const auto seen = [&] { return checkpoint::parse_model_config(config, "x").info; };
    EXPECT_EQ(seen().num_shared_experts, expected) << family;
    EXPECT_EQ(seen().shared_intermediate, expected * seen().intermediate) << family;
    config["n_shared_experts"] = nullptr;
    EXPECT_EQ(seen().num_shared_experts, 0) << family;
  }
}

TEST(ConfigForms, GroupsOfOneExpertEachAreAPlainTopK) {
  const TempDir dir;
  json config = small_config("deepseek_v3");
  config.update({{"n_group", 4}, {"topk_group", 3}, {"num_experts_per_tok", 3}});
  write_small_model(config, dir);
  const RouterConfig router = Checkpoint(dir.path()).load_layer(1).router_config;
  EXPECT_EQ(Router(router, {}).config().num_groups, 1);
}

// As in the fp8 of DeepSeek-V3.1, activations get scales that are powers of two, and weights keep
// theirs.
TEST(ConfigForms, ScaleFmtUe8m0IsOfActivations) {
  for (const auto& [value, is_ue8m0] :
       std::vector<std::pair<json, bool>>{{"ue8m0", true}, {"float", false}, {nullptr, false}}) {
    SCOPED_TRACE(value.dump());
    const TempDir dir;
    json config = small_config("deepseek_v3_fp8");
    config["quantization_config"]["scale_fmt"] = value;
    write_small_model(config, dir);
    const Checkpoint checkpoint(dir.path());
    const MoeLayerWeights weights = checkpoint.load_layer(1);
    for (const QuantConfig* q : {&weights.experts.quant, &weights.shared.quant}) {
      ASSERT_TRUE(activation_spec(q->a1));
      EXPECT_EQ(activation_spec(q->a1)->power_of_two_scale, is_ue8m0);
      EXPECT_EQ(activation_spec(q->a2)->power_of_two_scale, is_ue8m0);
      EXPECT_FALSE(weight_spec(q->w1)->power_of_two_scale);
    }
    const MoeLayerWeights plain = checkpoint.load_layer(1, {.quant = "none"});
    EXPECT_FALSE(plain.experts.quant.a1.power_of_two_scale);
  }
}

TEST(ConfigForms, ModeloptFileBesideTheConfigIsRead) {
  const TempDir dir;
  json config = small_config("qwen3_moe_nvfp4");
  write_small_model(config, dir);
  config.erase("quantization_config");
  write_text(dir / "config.json", config.dump());
  write_text(dir / "hf_quant_config.json", R"({"quantization": {"quant_algo": "NVFP4"}})");
  EXPECT_EQ(Checkpoint(dir.path()).info().quant_method, "nvfp4");
  write_text(dir / "hf_quant_config.json", R"({"quantization": 3})");
  expect_mentions(message_of([&] { Checkpoint checkpoint(dir.path()); }),
                  "hf_quant_config.json: quantization is 3, expected an object");
}

}  // namespace
}  // namespace moebius::testing
