// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tensors that are missing or do not fit config.json.  Errors name file, tensor and both values in
// one line.
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "moebius/checkpoint.h"
#include "moebius/quantize.h"
#include "tests/checkpoint/bad_tensors.h"

namespace moebius::testing {
namespace {

using nlohmann::json;

TEST_F(BadTensors, MissingOnesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"qwen3_moe", "gate.weight"},
      {"qwen3_moe", "experts.3.up_proj.weight"},
      {"qwen3_moe", "experts.0.down_proj.weight"},
      {"deepseek_v3", "gate.e_score_correction_bias"},
      {"deepseek_v3", "shared_experts.up_proj.weight"},
      {"qwen3_moe_int4", "experts.1.up_proj.weight_scale"},
      {"gpt_oss", "experts.down_proj_bias"},
      {"gpt_oss_mxfp4", "experts.gate_up_proj_scales"},
  };
  for (const auto& [model, name] : cases) {
    make(model);
    remove(block_ + name);
    expect_mentions(refusal(), {"tensor '" + block_ + name + "' is missing", dir_.path().string()});
  }
}

TEST_F(BadTensors, ShapesAndDtypesAreComparedWithTheConfig) {
  struct Replaced {
    const char* model;
    const char* name;
    Shape shape;
    DType dtype;
    const char* message;
  };
  const Replaced cases[] = {
      {"qwen3_moe",
       "experts.2.up_proj.weight",
       {64, 32},
       DType::kBF16,
       " has shape [64, 32], config.json makes it [32, 64]"},
      {"qwen3_moe",
       "gate.weight",
       {5, 64},
       DType::kBF16,
       " has shape [5, 64], config.json makes it [4, 64]"},
      {"gpt_oss",
       "experts.gate_up_proj",
       {4, 64, 63},
       DType::kBF16,
       " has shape [4, 64, 63], config.json makes it [4, 64, 64]"},
      {"qwen3_moe_nvfp4",
       "experts.0.gate_proj.input_scale",
       {2},
       DType::kF32,
       " has shape [2], expected one value"},
      {"qwen3_moe",
       "experts.0.gate_proj.weight",
       {32, 64},
       DType::kI8,
       " has dtype I8, expected BF16, F16 or F32 (quantization: none)"},
      {"qwen3_moe", "experts.2.gate_proj.weight", {32, 64}, DType::kF32, " has dtype f32, but "},
      {"qwen3_moe_fp8",
       "experts.3.down_proj.weight",
       {64, 32},
       DType::kI8,
       " has dtype I8, expected F8_E4M3 (quantization: fp8)"},
      {"qwen3_moe",
       "gate.weight",
       {4, 64},
       DType::kF8E4M3,
       " has dtype F8_E4M3, expected BF16, F16 or F32"},
  };
  for (const Replaced& c : cases) {
    make(c.model);
    at(block_ + c.name) = Tensor::zeros(c.shape, c.dtype);
    expect_mentions(refusal(), block_ + c.name + "'" + c.message);
  }
  make("qwen3_moe_int4");
  at(block_ + "experts.0.gate_proj.weight_shape").data<int64_t>()[1] = 65;
  expect_mentions(refusal(), "weight_shape' is [32, 65], config.json makes it [32, 64]");
}

// 60 columns of int4 have 30 bytes, but are stored in 8 words.
TEST_F(BadTensors, Int4RowsMustFillTheirWords) {
  json config = small_config("qwen3_moe_int4");
  config["hidden_size"] = 60;
  config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 4;
  make_from(config);
  expect_mentions(refusal<Unsupported>(),
                  {"experts.0.gate_proj.weight_packed' has 32 bytes in a row here",
                   "the 30 of its 60 columns"});
}

TEST_F(BadTensors, ScalesMustBeFinite) {
  make("qwen3_moe_fp8");
  set_float(at(block_ + "experts.3.up_proj.weight_scale_inv"), 2,
            std::numeric_limits<float>::quiet_NaN());
  expect_mentions(refusal(),
                  "experts.3.up_proj.weight_scale_inv' is NaN at [0, 2], expected a finite number");
  make("qwen3_moe_nvfp4");
  at(block_ + "experts.0.up_proj.weight_scale").data<uint8_t>()[5] = 0x7f;
  expect_mentions(refusal(),
                  "experts.0.up_proj.weight_scale' is NaN at [1, 1], expected a finite number");
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
  expect_mentions(refusal(), "down_proj_scales' is NaN at [1, 6, 0], expected a finite number");
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
  const MoeLayerWeights actual =
      Checkpoint(dir_.path()).load_layer(1, {.ep_size = 2, .ep_rank = 1});
  const Tensor half = expected.experts.w1.slice(2, 4);
  ASSERT_EQ(actual.experts.w1.shape(), half.shape());
  EXPECT_EQ(std::memcmp(actual.experts.w1.raw(), half.raw(), static_cast<size_t>(half.nbytes())),
            0);
}

// gpt_oss with quantized experts [E, N, K]: nothing defines how blocks of rows would lie in them.
TEST_F(BadTensors, FusedWeightsHaveScalesPerRow) {
  make("gpt_oss");
  const std::string path = block_ + "experts.";
  const auto put = [&](const std::string& name, Shape shape, DType dtype) {
    tensors_.emplace_back(path + name, Tensor::zeros(shape, dtype));
  };
  const auto quantize = [&](const char* quant) {
    json config = small_config("gpt_oss");
    config["quantization_config"] = small_quantization(quant);
    write_text(dir_ / "config.json", config.dump());
  };
  remove(path + "gate_up_proj");
  remove(path + "down_proj");
  const auto floats = tensors_;

  quantize("fp8");  // blocks of 32 rows and 16 columns
  put("gate_up_proj", {4, 64, 64}, DType::kF8E4M3);
  put("gate_up_proj_scale_inv", {4, 2, 4}, DType::kF32);
  put("down_proj", {4, 64, 32}, DType::kF8E4M3);
  put("down_proj_scale_inv", {4, 2, 2}, DType::kF32);
  expect_mentions(refusal<Unsupported>(),
                  "gate_up_proj_scale_inv' has a value for 32 rows of 64 (quantization: fp8)");

  tensors_ = floats;
  quantize("int4_asym");  // a word has the zero points of 8 rows
  for (const std::string module : {"gate_up_proj", "down_proj"}) {
    const int64_t n = 64;
    const int64_t k = module == "down_proj" ? 32 : 64;
    put(module + "_packed", {4, n, k / 8}, DType::kI32);
    put(module + "_scale", {4, n, k / 16}, DType::kF32);
    put(module + "_zero_point", {4, n, k / 16}, DType::kI32);
    put(module + "_shape", {2}, DType::kI64);
    at(path + module + "_shape").data<int64_t>()[0] = n;
    at(path + module + "_shape").data<int64_t>()[1] = k;
  }
  expect_mentions(refusal<Unsupported>(), "gate_up_proj_zero_point' has a value for 8 rows");
}

// A checkpoint whose experts are fused as transformers keeps them, with weights [E, N, K].
TEST_F(BadTensors, FusedFp8BlocksAreRead) {
  make("qwen3_moe_fp8");  // blocks of 32 rows and 16 columns
  write_safetensors(dir_ / "model.safetensors", tensors_);
  const ExpertWeights expected = Checkpoint(dir_.path()).load_layer(1).experts;
  const Tensor gate = at(block_ + "gate.weight");
  const std::string path = block_ + "experts.";
  tensors_ = {{block_ + "gate.weight", gate},
              {path + "gate_up_proj", expected.w1},
              {path + "gate_up_proj_scale_inv", expected.quant.w1.scale},
              {path + "down_proj", expected.w2},
              {path + "down_proj_scale_inv", expected.quant.w2.scale}};
  write_safetensors(dir_ / "model.safetensors", tensors_);
  const ExpertWeights actual = Checkpoint(dir_.path()).load_layer(1).experts;
  const auto expect_same = [](const Tensor& a, const Tensor& b) {
    ASSERT_EQ(a.shape(), b.shape());
    ASSERT_EQ(a.dtype(), b.dtype());
    EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.nbytes())), 0);
  };
  expect_same(actual.w1, expected.w1);
  expect_same(actual.w2, expected.w2);
  expect_same(actual.quant.w1.scale, expected.quant.w1.scale);
  expect_same(actual.quant.w2.scale, expected.quant.w2.scale);
}

// Llama 4 in fbgemm_fp8: weights [E, K, N], and scales [E, 1, 2I] and [E, H, 1].
TEST_F(BadTensors, FusedTransposedFp8ChannelsAreRead) {
  make("llama4");
  json config = small_config("llama4");
  config["quantization_config"] = small_quantization("fbgemm");
  write_text(dir_ / "config.json", config.dump());
  const std::string block = "model.layers.1.feed_forward.";
  const std::string path = block + "experts.";
  for (const std::string module : {"gate_up_proj", "down_proj"}) {
    Tensor& weight = at(path + module);
    const int64_t rows = weight.dim(2);
    weight = convert(weight, DType::kF8E4M3);
    const Tensor scale =
        Tensor::empty(module == "down_proj" ? Shape{4, rows, 1} : Shape{4, 1, rows}, DType::kF32);
    for (int64_t i = 0; i < scale.numel(); ++i) {
      set_float(scale, i, 0.25f + static_cast<float>(i % 7));
    }
    tensors_.emplace_back(path + module + "_scale", scale);
  }
  write_safetensors(dir_ / "model.safetensors", tensors_);
  const ExpertWeights experts = Checkpoint(dir_.path()).load_layer(1).experts;
  EXPECT_EQ(experts.quant.w1.format, QuantFormat::kFp8);
  EXPECT_TRUE(experts.quant.is_per_act_token());
  for (const auto& [w, desc, module] : {std::tuple(experts.w1, experts.quant.w1, "gate_up_proj"),
                                        {experts.w2, experts.quant.w2, "down_proj"}}) {
    const Tensor stored = at(path + module);
    const Tensor scale = at(path + module + std::string("_scale"));
    for (int64_t e = 0; e < 4; ++e) {
      for (int64_t n = 0; n < w.dim(1); n += 5) {
        for (int64_t k = 0; k < w.dim(2); k += 3) {
          ASSERT_EQ(get_float(w[e][n], k), get_float(stored[e][k], n));
        }
        ASSERT_EQ(get_float(desc.scale[e], n), get_float(scale[e], n));
      }
    }
  }
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
