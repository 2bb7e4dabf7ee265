// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What is wrong with a checkpoint is said in one line: file, field or tensor, and both values.
#include <chrono>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/make_model.h"
#include "checkpoint/model_config.h"
#include "moebius/checkpoint.h"
#include "moebius/quantize.h"
#include "tests/checkpoint/checkpoint_testing.h"
#include "tests/checkpoint/small_models.h"

namespace moebius::testing {
namespace {

using nlohmann::json;

json config_of(std::string_view name) {
  for (const SmallModel& model : small_models()) {
    if (model.name == name) {
      return model.config;
    }
  }
  ADD_FAILURE() << "no small model " << name;
  return {};
}

struct BadConfig {
  const char* name;
  const char* model;
  json patch;  // JSON merge patch: null removes
  bool is_unsupported;
  std::vector<std::string> parts;  // of the message
};

void PrintTo(const BadConfig& bad, std::ostream* out) {
  *out << bad.name;
}

json quantization(json own) {
  return {{"quantization_config", std::move(own)}};
}

json group(json own) {
  return quantization({{"config_groups", {{"group_0", std::move(own)}}}});
}

const BadConfig kBadConfigs[] = {
    {"NoModelType", "qwen3_moe", {{"model_type", nullptr}}, false, {"model_type is missing"}},
    {"UnknownFamily",
     "qwen3_moe",
     {{"model_type", "llama"}},
     true,
     {"model_type is \"llama\"", "mixtral, qwen2_moe"}},
    {"NoHidden", "qwen3_moe", {{"hidden_size", nullptr}}, false, {"hidden_size is missing"}},
    {"HiddenZero",
     "qwen3_moe",
     {{"hidden_size", 0}},
     false,
     {"hidden_size is 0", "an integer in [1, "}},
    {"HiddenNegative", "qwen3_moe", {{"hidden_size", -64}}, false, {"hidden_size is -64"}},
    {"HiddenHuge",
     "qwen3_moe",
     {{"hidden_size", 18446744073709551615u}},
     false,
     {"hidden_size is 18446744073709551615"}},
    {"HiddenText", "qwen3_moe", {{"hidden_size", "64"}}, false, {"hidden_size is \"64\""}},
    {"HiddenFraction", "qwen3_moe", {{"hidden_size", 64.5}}, false, {"hidden_size is 64.5"}},
    {"NoExperts",
     "qwen3_moe",
     {{"num_experts", nullptr}},
     false,
     {"num_experts or num_local_experts or n_routed_experts is missing"}},
    {"TwoExpertCounts",
     "qwen3_moe",
     {{"num_local_experts", 5}},
     false,
     {"num_experts is 4", "num_local_experts is 5"}},
    {"TopkAboveExperts",
     "qwen3_moe",
     {{"num_experts_per_tok", 5}},
     false,
     {"num_experts_per_tok is 5", "at most the 4 experts"}},
    {"NoIntermediate",
     "qwen3_moe",
     {{"moe_intermediate_size", nullptr}},
     false,
     {"moe_intermediate_size is missing"}},
    {"TopkGroupsAboveGroups",
     "deepseek_v3",
     {{"topk_group", 3}},
     false,
     {"topk_group is 3", "at most n_group, 2"}},
    {"TopkAboveEligible",
     "deepseek_v3",
     {{"num_experts_per_tok", 3}},
     false,
     {"num_experts_per_tok is 3", "the 2 experts of 1 groups"}},
    {"UnknownTopkMethod",
     "deepseek_v3",
     {{"topk_method", "best"}},
     true,
     {"topk_method is \"best\"", "noaux_tc"}},
    {"UnknownScoring", "deepseek_v3", {{"scoring_func", "relu"}}, true, {"scoring_func is"}},
    {"UnknownActivation", "qwen3_moe", {{"hidden_act", "tanh"}}, true, {"hidden_act is \"tanh\""}},
    {"UnknownDtype", "qwen3_moe", {{"dtype", "float64"}}, true, {"dtype is \"float64\""}},
    {"BooleanIsANumber",
     "qwen3_moe",
     {{"norm_topk_prob", 1}},
     false,
     {"norm_topk_prob is 1", "true or false"}},
    {"ScaleIsText",
     "deepseek_v3",
     {{"routed_scaling_factor", "2"}},
     false,
     {"routed_scaling_factor is \"2\"", "a number"}},
    {"LayersNotAList",
     "qwen3_moe",
     {{"mlp_only_layers", 3}},
     false,
     {"mlp_only_layers is 3", "a list of integers"}},
    {"LayerOutside", "llama4", {{"moe_layers", {0, 2}}}, false, {"moe_layers is [0,2]", "[0, 1]"}},
    {"UnknownMethod",
     "qwen3_moe_fp8",
     quantization({{"quant_method", "awq"}}),
     true,
     {"quantization_config.quant_method is \"awq\"", "fp8, compressed-tensors, mxfp4, modelopt"}},
    {"NoMethod",
     "qwen3_moe_fp8",
     quantization({{"quant_method", nullptr}}),
     false,
     {"quantization_config.quant_method is missing"}},
    {"QuantizationIsText",
     "qwen3_moe",
     {{"quantization_config", "fp8"}},
     false,
     {"quantization_config is \"fp8\"", "an object"}},
    {"Fp8WithoutBlocks",
     "qwen3_moe_fp8",
     quantization({{"weight_block_size", nullptr}}),
     true,
     {"weight_block_size is missing"}},
    {"Fp8BlockOfZero",
     "qwen3_moe_fp8",
     quantization({{"weight_block_size", {0, 128}}}),
     false,
     {"weight_block_size is [0,128]"}},
    {"Fp8ThreeDimensions",
     "qwen3_moe_fp8",
     quantization({{"weight_block_size", {1, 1, 1}}}),
     false,
     {"weight_block_size is [1,1,1]", "2 integers"}},
    {"Fp8Static",
     "qwen3_moe_fp8",
     quantization({{"activation_scheme", "static"}}),
     true,
     {"activation_scheme is \"static\""}},
    {"Fp8UnknownScaleFormat",
     "qwen3_moe_fp8",
     quantization({{"scale_fmt", "e5m3"}}),
     true,
     {"scale_fmt is \"e5m3\"", "ue8m0"}},
    {"Int4ActivationOrder",
     "qwen3_moe_int4",
     group({{"weights", {{"actorder", "group"}}}}),
     true,
     {"actorder is \"group\""}},
    {"Int4Channel",
     "qwen3_moe_int4",
     group({{"weights", {{"strategy", "channel"}}}}),
     true,
     {"config_groups.group_0.weights", "pack-quantized"}},
    {"Int4OddGroups",
     "qwen3_moe_int4",
     group({{"weights", {{"group_size", 3}}}}),
     true,
     {"config_groups.group_0.weights.group_size is 3", "multiples of 2"}},
    {"ThreeBits",
     "qwen3_moe_int4",
     group({{"weights", {{"num_bits", 3}}}}),
     true,
     {"\"num_bits\":3"}},
    {"Int4Activations",
     "qwen3_moe_int4",
     group({{"input_activations", {{"num_bits", 8}}}}),
     true,
     {"input_activations", "null with int4 weights"}},
    {"Int8StaticActivations",
     "qwen3_moe_int8",
     group({{"input_activations", {{"dynamic", false}}}}),
     true,
     {"input_activations", "dynamic per token"}},
    {"NoGroups",
     "qwen3_moe_int8",
     quantization({{"config_groups", {{"group_0", nullptr}}}}),
     false,
     {"config_groups is {}", "at least one group"}},
    {"ModeloptFp8", "qwen3_moe_nvfp4", quantization({{"quant_algo", "FP8"}}), true, {"\"FP8\""}},
    {"Mxfp4Elsewhere",
     "qwen3_moe_fp8",
     quantization({{"quant_method", "mxfp4"}}),
     true,
     {"mxfp4 for gpt_oss only, this is qwen3_moe"}},
};

class BadConfigs : public ::testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigs, AreRefusedWithFileAndField) {
  const TempDir dir;
  json config = config_of(GetParam().model);
  checkpoint::write_model(config, "x", 1, dir.path(), 1 << 30);
  config.merge_patch(GetParam().patch);
  write_text(dir / "config.json", config.dump());
  const auto open = [&] { Checkpoint checkpoint(dir.path()); };
  const std::string message =
      GetParam().is_unsupported ? message_of<Unsupported>(open) : message_of(open);
  expect_mentions(message, (dir / "config.json").string());
  for (const std::string& part : GetParam().parts) {
    expect_mentions(message, part);
  }
}

INSTANTIATE_TEST_SUITE_P(Config,
                         BadConfigs,
                         ::testing::ValuesIn(kBadConfigs),
                         [](const auto& test) { return test.param.name; });

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
  write_text(dir / "config.json", R"({"rope_theta": 1e999})");
  expect_mentions(refusal(), "1e999");
  write_text(dir / "config.json", R"({"rope_theta": 1)" + std::string(5000, '0') + "}");
  const std::string of_a_long_number = refusal();
  expect_mentions(of_a_long_number, "config.json: ");
  EXPECT_LT(of_a_long_number.size(), 2000u);
  write_text(dir / "config.json", config_of("qwen3_moe").dump());
  expect_mentions(refusal(), "has neither model.safetensors nor");
}

// As deep as a reader that recurses can go; deeper, its stack would end.
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
  json config = config_of("llama4");
  checkpoint::write_model(config, "x", 1, dir.path(), 1 << 30);
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
  json config = config_of("qwen3_moe");
  config.update({{"num_hidden_layers", 6}, {"mlp_only_layers", {4, 0, 4, 3, 9}}});
  EXPECT_EQ(checkpoint::parse_model_config(config, "x").info.moe_layers,
            (std::vector<int64_t>{1, 2, 5}));
  config = config_of("llama4");
  config.update({{"num_hidden_layers", 6}, {"moe_layers", {4, 0, 4, 3}}});
  EXPECT_EQ(checkpoint::parse_model_config(config, "x").info.moe_layers,
            (std::vector<int64_t>{0, 3, 4}));
}

// Minutes, if every layer searched the list.
TEST(ConfigForms, ManyLayersAreFoundInALongList) {
  json config = config_of("qwen3_moe");
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

// 4 experts in 3 groups, or in more: a plain or biased top-k, as the kernels do.
TEST(ConfigForms, GroupsThatAreNotEqualAreNone) {
  for (const int num_groups : {3, 4, 8}) {
    const TempDir dir;
    json config = config_of("deepseek_v3");
    config.update({{"n_group", num_groups}, {"topk_group", 1}, {"num_experts_per_tok", 3}});
    checkpoint::write_model(config, "x", 1, dir.path(), 1 << 30);
    const RouterConfig router = Checkpoint(dir.path()).load_layer(1).router_config;
    EXPECT_EQ(router.num_groups, 1) << num_groups;
    EXPECT_EQ(router.topk_groups, 1) << num_groups;
    EXPECT_EQ(router.topk, 3) << num_groups;
  }
}

// DeepSeek-V3.1's fp8: activations get scales that are powers of two, weights keep theirs.
TEST(ConfigForms, ScaleFmtUe8m0IsOfActivations) {
  for (const auto& [value, is_ue8m0] :
       std::vector<std::pair<json, bool>>{{"ue8m0", true}, {"float", false}, {nullptr, false}}) {
    SCOPED_TRACE(value.dump());
    const TempDir dir;
    json config = config_of("deepseek_v3_fp8");
    config["quantization_config"]["scale_fmt"] = value;
    checkpoint::write_model(config, "x", 1, dir.path(), 1 << 30);
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
  json config = config_of("qwen3_moe_nvfp4");
  checkpoint::write_model(config, "x", 1, dir.path(), 1 << 30);
  config.erase("quantization_config");
  write_text(dir / "config.json", config.dump());
  write_text(dir / "hf_quant_config.json", R"({"quantization": {"quant_algo": "NVFP4"}})");
  EXPECT_EQ(Checkpoint(dir.path()).info().quant_method, "nvfp4");
  write_text(dir / "hf_quant_config.json", R"({"quantization": 3})");
  expect_mentions(message_of([&] { Checkpoint checkpoint(dir.path()); }),
                  "hf_quant_config.json: quantization is 3, expected an object");
}

// A checkpoint whose tensors can be taken out or replaced.
class BadTensors : public ::testing::Test {
 protected:
  void make(std::string_view model) { make_from(config_of(model)); }
  void make_from(const json& config) {
    for (const char* name : {"config.json", "model.safetensors"}) {
      std::filesystem::remove(dir_ / name);  // a model is not written over another
    }
    checkpoint::write_model(config, "x", 1, dir_.path(), 1 << 30);
    const Safetensors file(dir_ / "model.safetensors");
    tensors_.clear();
    for (const std::string& name : file.names()) {
      tensors_.emplace_back(name, file.tensor(name).clone());
    }
  }
  Tensor& at(const std::string& name) {
    for (auto& [key, tensor] : tensors_) {
      if (key == name) {
        return tensor;
      }
    }
    throw std::out_of_range(name);
  }
  void remove(const std::string& name) {
    at(name);
    std::erase_if(tensors_, [&](const auto& item) { return item.first == name; });
  }
  // The message of loading layer 1 from what the tensors are now.
  template <typename E = InvalidArgument>
  std::string refusal(const LoadOptions& options = {}) {
    write_safetensors(dir_ / "model.safetensors", tensors_);
    return message_of<E>([&] { Checkpoint(dir_.path()).load_layer(1, options); });
  }

  const std::string block_ = "model.layers.1.mlp.";
  TempDir dir_;
  std::vector<std::pair<std::string, Tensor>> tensors_;
};

TEST_F(BadTensors, MissingOnesAreNamed) {
  for (const char* name :
       {"gate.weight", "experts.3.up_proj.weight", "experts.0.down_proj.weight"}) {
    make("qwen3_moe");
    remove(block_ + name);
    const std::string message = refusal();
    expect_mentions(message, "tensor '" + block_ + name + "' is missing");
    expect_mentions(message, dir_.path().string());
  }
  make("deepseek_v3");
  remove(block_ + "gate.e_score_correction_bias");
  expect_mentions(refusal(), "e_score_correction_bias' is missing");
  make("deepseek_v3");
  remove(block_ + "shared_experts.up_proj.weight");
  expect_mentions(refusal(), "shared_experts.up_proj.weight' is missing");
  make("qwen3_moe_int4");
  remove(block_ + "experts.1.up_proj.weight_scale");
  expect_mentions(refusal(), "experts.1.up_proj.weight_scale' is missing");
  make("gpt_oss");
  remove(block_ + "experts.down_proj_bias");
  expect_mentions(refusal(), "down_proj_bias' is missing");
  make("gpt_oss_mxfp4");
  remove(block_ + "experts.gate_up_proj_scales");
  expect_mentions(refusal(), "gate_up_proj_scales' is missing");
}

TEST_F(BadTensors, ShapesAreComparedWithTheConfig) {
  make("qwen3_moe");
  at(block_ + "experts.2.up_proj.weight") = Tensor::zeros({64, 32}, DType::kBF16);
  std::string message = refusal();
  expect_mentions(message, block_ + "experts.2.up_proj.weight");
  expect_mentions(message, "[64, 32], config.json makes it [32, 64]");
  make("qwen3_moe");
  at(block_ + "gate.weight") = Tensor::zeros({5, 64}, DType::kBF16);
  expect_mentions(refusal(), "[5, 64], config.json makes it [4, 64]");
  make("gpt_oss");
  at(block_ + "experts.gate_up_proj") = Tensor::zeros({4, 64, 63}, DType::kBF16);
  expect_mentions(refusal(), "[4, 64, 63], config.json makes it [4, 64, 64]");
  make("qwen3_moe_int4");
  at(block_ + "experts.0.gate_proj.weight_shape").data<int64_t>()[1] = 65;
  expect_mentions(refusal(), "weight_shape' is [32, 65], config.json makes it [32, 64]");
  make("qwen3_moe_nvfp4");
  at(block_ + "experts.0.gate_proj.input_scale") = Tensor::zeros({2}, DType::kF32);
  expect_mentions(refusal(), "input_scale' has shape [2], expected one value");
}

TEST_F(BadTensors, DtypesAreComparedWithTheScheme) {
  make("qwen3_moe");
  at(block_ + "experts.0.gate_proj.weight") = Tensor::zeros({32, 64}, DType::kI8);
  expect_mentions(refusal(), "has dtype I8, expected BF16, F16 or F32 (quantization: none)");
  make("qwen3_moe");
  at(block_ + "experts.2.gate_proj.weight") = Tensor::zeros({32, 64}, DType::kF32);
  const std::string message = refusal();
  expect_mentions(message, "experts.2.gate_proj.weight' has dtype f32");
  expect_mentions(message, "has bf16");
  make("qwen3_moe_fp8");
  at(block_ + "experts.3.down_proj.weight") = Tensor::zeros({64, 32}, DType::kI8);
  expect_mentions(refusal(), "has dtype I8, expected F8_E4M3 (quantization: fp8)");
  make("qwen3_moe");
  at(block_ + "gate.weight") = Tensor::zeros({4, 64}, DType::kF8E4M3);
  expect_mentions(refusal(), "gate.weight' has dtype F8_E4M3, expected BF16, F16 or F32");
}

// 60 columns of int4 are 30 bytes, in 8 words.
TEST_F(BadTensors, Int4RowsMustFillTheirWords) {
  json config = config_of("qwen3_moe_int4");
  config["hidden_size"] = 60;
  config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 4;
  make_from(config);
  const std::string message = refusal<Unsupported>();
  expect_mentions(message, "experts.0.gate_proj.weight_packed' has 32 bytes in a row here");
  expect_mentions(message, "the 30 of its 60 columns");
}

TEST_F(BadTensors, ScalesMustBeFinite) {
  make("qwen3_moe_fp8");
  set_float(at(block_ + "experts.3.up_proj.weight_scale_inv"), 2,
            std::numeric_limits<float>::quiet_NaN());
  expect_mentions(refusal(), "experts.3.up_proj.weight_scale_inv' has a scale that is not finite");
  make("qwen3_moe_nvfp4");
  at(block_ + "experts.0.up_proj.weight_scale").data<uint8_t>()[5] = 0x7f;
  expect_mentions(refusal(),
                  "experts.0.up_proj.weight_scale' has a scale that is not finite in row 1");
  make("qwen3_moe_nvfp4");
  for (const auto& [scale, text] : {std::pair{0.0f, "0"}, {1e-45f, "1e-45"}, {-1.0f, "-1"}}) {
    set_float(at(block_ + "experts.1.gate_proj.input_scale"), 0, scale);
    expect_mentions(refusal(), std::string("experts.1.gate_proj.input_scale' is ") + text +
                                   ", expected a finite value of at least 1.1754944e-38");
  }
  make("qwen3_moe_nvfp4");
  set_float(at(block_ + "experts.2.down_proj.input_scale"), 0, 4.0f);
  set_float(at(block_ + "experts.2.down_proj.weight_scale_2"), 0, 1e38f);
  expect_mentions(refusal(),
                  "experts.2.down_proj.weight_scale_2' is 1e+38, expected a finite product with "
                  "the input scale 4");
  make("gpt_oss_mxfp4");
  at(block_ + "experts.down_proj_scales").data<uint8_t>()[70] = 255;
  expect_mentions(refusal(), "down_proj_scales' has a scale that is not finite");
}

TEST_F(BadTensors, UnquantizedModulesOfAQuantizedModelAreRead) {
  make("deepseek_v3_fp8");
  for (const char* module : {"gate_proj", "up_proj", "down_proj"}) {
    const std::string name = block_ + "shared_experts." + module;
    remove(name + ".weight_scale_inv");
    Tensor& weight = at(name + ".weight");
    weight = convert(weight, DType::kBF16);
  }
  write_safetensors(dir_ / "model.safetensors", tensors_);
  const MoeLayerWeights weights = Checkpoint(dir_.path()).load_layer(1);
  EXPECT_EQ(weights.experts.w1.dtype(), DType::kF8E4M3);
  EXPECT_EQ(weights.shared.w1.dtype(), DType::kBF16);
  EXPECT_FALSE(weights.shared.quant.w1.format);
}

TEST_F(BadTensors, FusedWeightsOfOtherFamiliesAreRead) {
  make("qwen3_moe");
  write_safetensors(dir_ / "model.safetensors", tensors_);
  const MoeLayerWeights expected = Checkpoint(dir_.path()).load_layer(1);
  const Tensor gate = at(block_ + "gate.weight");
  tensors_ = {{block_ + "gate.weight", gate},
              {block_ + "experts.gate_up_proj", expected.experts.w1},
              {block_ + "experts.down_proj", expected.experts.w2}};
  write_safetensors(dir_ / "model.safetensors", tensors_);
  LoadOptions options;
  options.ep_size = 2;
  options.ep_rank = 1;
  const MoeLayerWeights actual = Checkpoint(dir_.path()).load_layer(1, options);
  const Tensor half = expected.experts.w1.slice(2, 4);
  ASSERT_EQ(actual.experts.w1.shape(), half.shape());
  EXPECT_EQ(std::memcmp(actual.experts.w1.raw(), half.raw(), static_cast<size_t>(half.nbytes())),
            0);
}

// gpt_oss with quantized experts [E, N, K], of which nobody says how blocks of rows lie.
TEST_F(BadTensors, FusedWeightsHaveScalesPerRow) {
  make("gpt_oss");
  const std::string path = block_ + "experts.";
  const auto put = [&](const std::string& name, Shape shape, DType dtype) {
    tensors_.emplace_back(path + name, Tensor::zeros(shape, dtype));
  };
  const auto quantize = [&](const char* quant) {
    json config = config_of("gpt_oss");
    config["quantization_config"] = small_quantization(quant);
    write_text(dir_ / "config.json", config.dump());
  };
  remove(path + "gate_up_proj");
  remove(path + "down_proj");
  const auto floats = tensors_;

  quantize("fp8");  // blocks of 32 rows and 16 columns
  put("gate_up_proj.weight", {4, 64, 64}, DType::kF8E4M3);
  put("gate_up_proj.weight_scale_inv", {4, 64, 4}, DType::kF32);
  put("down_proj.weight", {4, 64, 32}, DType::kF8E4M3);
  put("down_proj.weight_scale_inv", {4, 64, 2}, DType::kF32);
  expect_mentions(refusal<Unsupported>(),
                  "gate_up_proj.weight_scale_inv' has a value for 32 rows (quantization: fp8)");

  tensors_ = floats;
  quantize("int4_asym");  // 8 rows in a word
  for (const std::string module : {"gate_up_proj", "down_proj"}) {
    const int64_t n = 64;
    const int64_t k = module == "down_proj" ? 32 : 64;
    put(module + ".weight_packed", {4, n, k / 8}, DType::kI32);
    put(module + ".weight_scale", {4, n, k / 16}, DType::kF32);
    put(module + ".weight_zero_point", {4, n, k / 16}, DType::kI32);
    put(module + ".weight_shape", {2}, DType::kI64);
    at(path + module + ".weight_shape").data<int64_t>()[0] = n;
    at(path + module + ".weight_shape").data<int64_t>()[1] = k;
  }
  expect_mentions(refusal<Unsupported>(), "gate_up_proj.weight_zero_point' has a value for 8 rows");
}

TEST_F(BadTensors, OptionsAreChecked) {
  make("deepseek_v2");
  write_safetensors(dir_ / "model.safetensors", tensors_);
  const Checkpoint checkpoint(dir_.path());
  const auto refusal_of = [&](int64_t layer, const LoadOptions& options) {
    return message_of([&] { checkpoint.load_layer(layer, options); });
  };
  expect_mentions(refusal_of(0, {}), "layer is 0, but layers with experts are 1 of 2, from 1 to 1");
  expect_mentions(refusal_of(-1, {}), "layer is -1");
  expect_mentions(refusal_of(1, {.quant = "int3"}),
                  "quant is int3, expected one of auto, none, fp8");
  expect_mentions(refusal_of(1, {.tp_size = 3}), "3");
  expect_mentions(refusal_of(1, {.ep_size = 5, .ep_rank = 4}), "experts");
  expect_mentions(refusal_of(1, {.ep_size = 2, .ep_rank = 2}), "2");
  expect_mentions(refusal_of(1, {.tp_size = 0}), "0");
  make("qwen3_moe_fp8");
  expect_mentions(refusal({.quant = "int8_w8a8"}), "the weights are quantized already (fp8)");
}

}  // namespace
}  // namespace moebius::testing
