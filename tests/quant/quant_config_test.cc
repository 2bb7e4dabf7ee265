// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/quant_config.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "moebius/error.h"
#include "moebius/quantize.h"
#include "tests/error_text.h"

namespace moebius {
namespace {

using Format = QuantFormat;

constexpr Format kAllFormats[] = {Format::kFp8,   Format::kInt8,      Format::kInt4,
                                  Format::kMxfp4, Format::kMxfp6E3M2, Format::kMxfp6E2M3,
                                  Format::kMxfp8, Format::kNvfp4};

Tensor vector(float value) {
  Tensor t = Tensor::empty({1}, DType::kF32);
  t.data<float>()[0] = value;
  return t;
}

// Tensors that can be told apart by their only element.
QuantTensors all_tensors() {
  QuantTensors t;
  t.w1_scale = vector(1);
  t.w2_scale = vector(2);
  t.a1_scale = vector(3);
  t.a2_scale = vector(4);
  t.g1_alphas = vector(5);
  t.g2_alphas = vector(6);
  t.a1_gscale = vector(7);
  t.a2_gscale = vector(8);
  t.w1_bias = vector(9);
  t.w2_bias = vector(10);
  return t;
}

using testing::expect_mentions;

using testing::message_of;

struct Case {
  std::string what;
  QuantConfig config;
  std::optional<Format> format;
  std::string scales;                         // any of "token", "channel", "tensor"
  std::optional<GroupShape> block = {};       // block_shape()
  std::string use = {};                       // the only use_*() that is true
  std::optional<std::string> scheme = {};     // ocp_mx_scheme()
  std::optional<std::string> name_bf16 = {};  // config_name(kBF16)
  // scale_shape() for 10 tokens and 300 columns
  std::optional<std::array<int64_t, 2>> shape = {};
};

std::vector<Case> cases() {
  using C = QuantConfig;
  using Shape2 = std::array<int64_t, 2>;
  const GroupShape block{128, 128};
  const GroupShape group{0, 64};
  const GroupShape mx{1, 32};
  const std::string fp8 = "fp8_w8a8", int8 = "int8_w8a8", wide8 = "int8_w8a16", int4 = "int4_w4a16";
  const std::optional<std::string> mxfp4 = "w_mxfp4_a_mxfp4";
  const Format f8 = Format::kFp8, i8 = Format::kInt8, mx4 = Format::kMxfp4;
  return {
      {"unquantized", C::unquantized(), {}, ""},
      {"biased", C::biased(vector(1), vector(2)), {}, ""},
      {"fp8 tensor", C::fp8_w8a8({}), f8, "tensor", {}, fp8, {}, fp8, Shape2{1, 1}},
      {"fp8 token", C::fp8_w8a8({}, true), f8, "token", {}, fp8, {}, fp8, Shape2{10, 1}},
      {"fp8 channel",
       C::fp8_w8a8({}, false, true),
       f8,
       "channel tensor",
       {},
       fp8,
       {},
       fp8,
       Shape2{1, 1}},
      {"fp8 token and channel",
       C::fp8_w8a8({}, true, true),
       f8,
       "token channel",
       {},
       fp8,
       {},
       fp8,
       Shape2{10, 1}},
      {"fp8 block",
       C::fp8_w8a8({}, false, false, block),
       f8,
       "",
       block,
       fp8,
       {},
       fp8,
       Shape2{10, 3}},
      {"int8 tensor", C::int8_w8a8({}), i8, "tensor", {}, int8, {}, {}, Shape2{1, 1}},
      {"int8 token", C::int8_w8a8({}, true), i8, "token", {}, int8, {}, {}, Shape2{10, 1}},
      {"int8_w8a16", C::int8_w8a16({}), {}, "", {}, wide8, {}, wide8},
      {"int8_w8a16 groups", C::int8_w8a16({}, group), {}, "", group, wide8, {}, wide8},
      {"int4_w4a16", C::int4_w4a16({}), {}, "", {}, int4, {}, int4},
      {"int4_w4a16 groups", C::int4_w4a16({}, group), {}, "", group, int4, {}, int4},
      {"mxfp4_w4a16", C::mxfp4_w4a16({}), {}, "", {}, "mxfp4_w4a16", "w_mxfp4"},
      {"mxfp4 both", C::ocp_mx(mx4, {}), mx4, "tensor", {}, "", mxfp4, {}, Shape2{1, 1}},
      {"mxfp4 block", C::ocp_mx(mx4, {}, {}, mx), mx4, "", mx, "", mxfp4, {}, Shape2{10, 10}},
      {"nvfp4", C::nvfp4({}), Format::kNvfp4, "tensor", {}, "nvfp4_w4a4", {}, {}, Shape2{1, 1}},
  };
}

TEST(QuantConfig, PropertiesOfEveryBuilder) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.what);
    const auto has = [&](const char* scale) { return c.scales.find(scale) != std::string::npos; };
    EXPECT_EQ(c.config.quant_format(), c.format);
    EXPECT_EQ(c.config.is_quantized(), c.format.has_value());
    EXPECT_EQ(c.config.block_shape(), c.block);
    EXPECT_EQ(c.config.is_block_quantized(), c.block.has_value());
    EXPECT_EQ(c.config.is_per_act_token(), has("token"));
    EXPECT_EQ(c.config.per_out_channel(), has("channel"));
    EXPECT_EQ(c.config.is_per_tensor(), has("tensor"));
    EXPECT_EQ(c.config.use_fp8_w8a8(), c.use == "fp8_w8a8");
    EXPECT_EQ(c.config.use_int8_w8a8(), c.use == "int8_w8a8");
    EXPECT_EQ(c.config.use_int8_w8a16(), c.use == "int8_w8a16");
    EXPECT_EQ(c.config.use_int4_w4a16(), c.use == "int4_w4a16");
    EXPECT_EQ(c.config.use_mxfp4_w4a16(), c.use == "mxfp4_w4a16");
    EXPECT_EQ(c.config.use_nvfp4_w4a4(), c.use == "nvfp4_w4a4");
    EXPECT_EQ(c.config.ocp_mx_scheme(), c.scheme);
    EXPECT_EQ(c.config.config_name(DType::kBF16), c.name_bf16);
    EXPECT_EQ(c.config.scale_shape(10, 300), c.shape);
    const auto batched = c.config.batched_scale_shape(4, 10, 300);
    ASSERT_EQ(batched.has_value(), c.shape.has_value());
    if (batched) {
      EXPECT_EQ(*batched, (std::array<int64_t, 3>{4, (*c.shape)[0], (*c.shape)[1]}));
    }
    EXPECT_NO_THROW(c.config.validate());
  }
}

TEST(QuantConfig, Float32NamesOnlyConfigsWithoutAKernelOfTheirOwn) {
  EXPECT_EQ(QuantConfig::unquantized().config_name(DType::kF32), "float32");
  EXPECT_EQ(QuantConfig::biased({}, {}).config_name(DType::kF32), "float32");
  EXPECT_EQ(QuantConfig::int8_w8a8({}).config_name(DType::kF32), "float32");
  EXPECT_EQ(QuantConfig::nvfp4({}).config_name(DType::kF32), "float32");
  EXPECT_EQ(QuantConfig::fp8_w8a8({}).config_name(DType::kF32), "fp8_w8a8");
  EXPECT_EQ(QuantConfig::int4_w4a16({}).config_name(DType::kF32), "int4_w4a16");
  EXPECT_EQ(QuantConfig::mxfp4_w4a16({}).config_name(DType::kF32), std::nullopt);
  EXPECT_EQ(QuantConfig::unquantized().config_name(DType::kF16), std::nullopt);
}

TEST(QuantConfig, OcpMxSchemeNamesWeightThenActivation) {
  struct Row {
    std::optional<Format> activation;
    Format weight;
    std::optional<std::string> scheme;
  };
  const Row rows[] = {
      {{}, Format::kMxfp4, "w_mxfp4"},
      {{}, Format::kMxfp6E3M2, "w_mxfp6_e3m2"},
      {{}, Format::kMxfp6E2M3, "w_mxfp6_e2m3"},
      {Format::kMxfp4, Format::kMxfp4, "w_mxfp4_a_mxfp4"},
      {Format::kMxfp6E3M2, Format::kMxfp4, "w_mxfp4_a_mxfp6_e3m2"},
      {Format::kMxfp6E2M3, Format::kMxfp4, "w_mxfp4_a_mxfp6_e2m3"},
      {Format::kMxfp6E3M2, Format::kMxfp6E3M2, "w_mxfp6_e3m2_a_mxfp6_e3m2"},
      {Format::kMxfp6E2M3, Format::kMxfp6E2M3, "w_mxfp6_e2m3_a_mxfp6_e2m3"},
      {Format::kMxfp8, Format::kMxfp4, "w_mxfp4_a_mxfp8"},
      {Format::kFp8, Format::kMxfp4, "w_mxfp4_a_fp8"},
      {Format::kFp8, Format::kMxfp6E3M2, "w_mxfp6_e3m2_a_fp8"},
      {Format::kInt8, Format::kMxfp4, {}},
      {Format::kNvfp4, Format::kMxfp4, {}},
      {Format::kMxfp4, Format::kFp8, {}},
      {{}, Format::kInt4, {}},
      {{}, Format::kInt8, {}},
  };
  for (const Row& row : rows) {
    const QuantConfig config =
        QuantConfig::make(row.activation, false, false, std::nullopt, {}, row.weight);
    EXPECT_EQ(config.ocp_mx_scheme(), row.scheme) << row.scheme.value_or("none");
  }
  // fp8 activations beside mx weights are scaled per tensor, and the config is not w8a8.
  EXPECT_EQ(QuantConfig::make(Format::kFp8, true, false, std::nullopt, {}, Format::kMxfp4)
                .ocp_mx_scheme(),
            std::nullopt);
  const QuantConfig a_fp8 = QuantConfig::ocp_mx(Format::kFp8, {}, Format::kMxfp4);
  EXPECT_EQ(a_fp8.ocp_mx_scheme(), "w_mxfp4_a_fp8");
  EXPECT_EQ(activation_spec(a_fp8.a2)->group, GroupShape::per_tensor());
  EXPECT_FALSE(a_fp8.use_fp8_w8a8());
  EXPECT_EQ(a_fp8.config_name(DType::kBF16), std::nullopt);
  EXPECT_EQ(QuantConfig::unquantized().ocp_mx_scheme(), std::nullopt);
}

TEST(QuantConfig, MakePutsEveryTensorInItsPlace) {
  const QuantConfig c =
      QuantConfig::make(Format::kNvfp4, false, false, std::nullopt, all_tensors());
  const auto first = [](const Tensor& t) { return t.data<float>()[0]; };
  EXPECT_EQ(first(c.w1.scale), 1);
  EXPECT_EQ(first(c.w2.scale), 2);
  EXPECT_EQ(first(c.a1.scale), 3);
  EXPECT_EQ(first(c.a2.scale), 4);
  EXPECT_EQ(first(c.w1.alpha_or_gscale), 5);
  EXPECT_EQ(first(c.w2.alpha_or_gscale), 6);
  EXPECT_EQ(first(c.a1.alpha_or_gscale), 7);
  EXPECT_EQ(first(c.a2.alpha_or_gscale), 8);
  EXPECT_EQ(first(c.w1.bias), 9);
  EXPECT_EQ(first(c.w2.bias), 10);
  EXPECT_FALSE(c.a1.bias.defined());
  EXPECT_FALSE(c.w1.zero_point.defined());
}

TEST(QuantConfig, ZeroPointsBelongToTheWeights) {
  QuantTensors tensors;
  tensors.w1_zero_point = vector(1);
  tensors.w2_zero_point = vector(2);
  const QuantConfig c = QuantConfig::int4_w4a16(tensors, GroupShape{0, 32});
  EXPECT_EQ(c.w1.zero_point.data<float>()[0], 1);
  EXPECT_EQ(c.w2.zero_point.data<float>()[0], 2);
  EXPECT_EQ(QuantConfig::int8_w8a16(tensors).w2.zero_point.data<float>()[0], 2);

  const std::string message = message_of([&] { QuantConfig::fp8_w8a8(tensors); });
  expect_mentions(message, "w1 has zero points but is fp8");
}

TEST(QuantConfig, WeightsDefaultToTheActivationsFormat) {
  const QuantConfig same = QuantConfig::make(Format::kMxfp8, false, false, std::nullopt, {});
  EXPECT_EQ(same.w1.format, Format::kMxfp8);
  EXPECT_EQ(same.w2.format, Format::kMxfp8);
  const QuantConfig mixed =
      QuantConfig::make(Format::kMxfp8, false, false, std::nullopt, {}, Format::kMxfp4);
  EXPECT_EQ(mixed.a2.format, Format::kMxfp8);
  EXPECT_EQ(mixed.w1.format, Format::kMxfp4);
}

TEST(QuantConfig, GroupShapesFollowTheFlags) {
  const auto make = [](std::optional<Format> a, bool token, bool channel,
                       std::optional<GroupShape> block) {
    return QuantConfig::make(a, token, channel, block, {});
  };
  EXPECT_EQ(make(Format::kFp8, false, false, {}).a1.shape, GroupShape::per_tensor());
  EXPECT_EQ(make(Format::kFp8, false, false, {}).w1.shape, std::nullopt);
  EXPECT_EQ(make(Format::kFp8, true, true, {}).a2.shape, GroupShape::per_token());
  EXPECT_EQ(make(Format::kFp8, true, true, {}).w2.shape, GroupShape::per_token());
  EXPECT_EQ(make({}, false, false, {}).a1.shape, std::nullopt);
  const GroupShape block{64, 32};
  EXPECT_EQ(make(Format::kFp8, false, false, block).a2.shape, block);
  EXPECT_EQ(make(Format::kFp8, false, false, block).w2.shape, block);
}

TEST(QuantConfig, RefusesWhatMeansNothing) {
  const GroupShape block{128, 128};
  std::string message = message_of([&] { QuantConfig::fp8_w8a8({}, true, false, block); });
  expect_mentions(message, "block {128, 128} together with per-token activation scales");
  message = message_of([&] { QuantConfig::fp8_w8a8({}, false, true, block); });
  expect_mentions(message, "block {128, 128} together with per-channel weight scales");
  message = message_of([&] { QuantConfig::fp8_w8a8({}, false, false, GroupShape{-1, 128}); });
  expect_mentions(message, "block {-1, 128} is not");
  message = message_of([&] { QuantConfig::make(Format::kInt4, false, false, std::nullopt, {}); });
  expect_mentions(message, "a1 is int4");
  message = message_of([&] { QuantConfig::int4_w4a16({}, GroupShape{1, 0}); });
  expect_mentions(message, "a1 has groups of {1, 0}");
  message = message_of([&] { QuantConfig::int4_w4a16({}, GroupShape{0, 3}); });
  expect_mentions(message, "w1 is int4 in groups of {0, 3}: their columns must be a multiple of 2");
  EXPECT_NO_THROW(QuantConfig::int4_w4a16({}, GroupShape{0, 2}));
  EXPECT_NO_THROW(QuantConfig::int8_w8a16({}, GroupShape{0, 3}));
  for (const Format format : {Format::kInt8, Format::kInt4, Format::kNvfp4}) {
    message = message_of([&] { QuantConfig::ocp_mx(format, {}); });
    expect_mentions(
        message, "activation format " + std::string(name(format)) + " is neither an OCP MX format");
  }
  message = message_of([&] { QuantConfig::ocp_mx(Format::kFp8, {}); });
  expect_mentions(message, "activations are fp8 and the weights' format is not given");
  message = message_of([&] { QuantConfig::ocp_mx(Format::kFp8, {}, Format::kInt4); });
  expect_mentions(message, "activations are fp8 and the weights' format is int4");
  message = message_of([&] {
    QuantConfig::ocp_mx(Format::kFp8, {}, Format::kMxfp4, GroupShape{1, 32});
  });
  expect_mentions(message, "block {1, 32} of fp8 activations beside mxfp4 weights");
}

TEST(QuantConfig, ValidateSeesWhatWasFilledByHand) {
  QuantConfig config;
  config.a1.format = config.a2.format = Format::kFp8;
  config.a1.shape = config.a2.shape = GroupShape::per_token();
  config.w1.format = config.w2.format = Format::kFp8;
  EXPECT_NO_THROW(config.validate());
  config.w1.shape = GroupShape{128, 128};
  expect_mentions(message_of([&] { config.validate(); }),
                  "w1 is scaled by blocks {128, 128} together with per-token");
  config.w1.shape = GroupShape::per_token();
  config.a1.shape = GroupShape{1, 128};
  expect_mentions(message_of([&] { config.validate(); }),
                  "a1 is scaled by blocks {1, 128} together with per-channel");
  config.a1.shape = GroupShape{-1, 1};
  expect_mentions(message_of([&] { config.validate(); }), "a1 has groups of {-1, 1}");
  config.a1.shape = GroupShape::per_tensor();
  config.a2.format = Format::kInt4;
  expect_mentions(message_of([&] { config.validate(); }), "a2 is int4");
  config.a2.format = Format::kFp8;
  config.a2.zero_point = vector(0);
  expect_mentions(message_of([&] { config.validate(); }), "a2 has zero points");
}

TEST(QuantConfig, CallsBringScalesOfGemm2sRowsPerToken) {
  QuantConfig config = QuantConfig::fp8_w8a8({}, true, true);
  config.a2.calls_bring_scales = true;
  EXPECT_NO_THROW(config.validate());
  EXPECT_EQ(activation_spec(config.a2)->group, GroupShape::per_token());
  config.a2.scale = vector(1);
  expect_mentions(message_of([&] { config.validate(); }), "it has a scale, too");
  config.a2.scale = {};
  config.a2.shape = GroupShape::per_tensor();
  expect_mentions(message_of([&] { config.validate(); }), "is fp8 in groups of {-1, -1}");
  config.a2.shape = GroupShape::per_token();
  config.a1.calls_bring_scales = true;
  expect_mentions(message_of([&] { config.validate(); }), "calls bring scales of a1");
  config.a1.calls_bring_scales = false;
  config.w2.calls_bring_scales = true;
  expect_mentions(message_of([&] { config.validate(); }), "calls bring scales of weights");
}

TEST(QuantConfig, PowersOfTwoAreScalesOfFp8ActivationsByBlocks) {
  QuantConfig config = QuantConfig::fp8_w8a8({}, false, false, GroupShape{128, 128});
  EXPECT_FALSE(activation_spec(config.a1)->power_of_two_scale);
  config.a1.power_of_two_scale = config.a2.power_of_two_scale = true;
  EXPECT_NO_THROW(config.validate());
  for (const QuantDesc* desc : {&config.a1, &config.a2}) {
    EXPECT_TRUE(activation_spec(*desc)->power_of_two_scale);
    EXPECT_EQ(activation_spec(*desc)->group, (GroupShape{1, 128}));
  }
  config.w2.power_of_two_scale = true;
  expect_mentions(message_of([&] { config.validate(); }),
                  "w2 has power-of-two (UE8M0) scales: they are of fp8 activations");

  const auto refused = [](QuantConfig other) {
    other.a2.power_of_two_scale = true;
    return message_of([&] { other.validate(); });
  };
  expect_mentions(refused(QuantConfig::fp8_w8a8({})), "is fp8 in groups of {-1, -1}");
  expect_mentions(refused(QuantConfig::fp8_w8a8({}, true)), "is fp8 in groups of {1, -1}");
  expect_mentions(refused(QuantConfig::make(Format::kInt8, false, false, GroupShape{1, 64}, {})),
                  "a2 has power-of-two (UE8M0) scales and is int8 in groups of {1, 64}");
  expect_mentions(refused({}), "is not quantized");
}

TEST(QuantFormats, NamesStorageAndFamily) {
  for (const Format format : kAllFormats) {
    EXPECT_EQ(quant_format_from_name(name(format)), format);
  }
  EXPECT_FALSE(quant_format_from_name("fp9").has_value());
  EXPECT_EQ(name(Format::kMxfp6E3M2), "mxfp6_e3m2");
  EXPECT_EQ(storage_dtype(Format::kFp8), DType::kF8E4M3);
  EXPECT_EQ(storage_dtype(Format::kInt8), DType::kI8);
  EXPECT_EQ(storage_dtype(Format::kInt4), DType::kU4);
  EXPECT_EQ(storage_dtype(Format::kMxfp4), DType::kF4E2M1);
  EXPECT_EQ(storage_dtype(Format::kMxfp6E3M2), DType::kF6E3M2);
  EXPECT_EQ(storage_dtype(Format::kMxfp6E2M3), DType::kF6E2M3);
  EXPECT_EQ(storage_dtype(Format::kMxfp8), DType::kF8E4M3);
  EXPECT_EQ(storage_dtype(Format::kNvfp4), DType::kF4E2M1);
  EXPECT_TRUE(is_ocp_mx(Format::kMxfp8));
  EXPECT_FALSE(is_ocp_mx(Format::kNvfp4));
}

TEST(QuantSpecs, ActivationsOfABlockConfigHaveAGroupPerRow) {
  const QuantConfig block = QuantConfig::fp8_w8a8({}, false, false, GroupShape{128, 64});
  EXPECT_EQ(activation_spec(block.a1)->group, (GroupShape{1, 64}));
  EXPECT_EQ(weight_spec(block.w1)->group, (GroupShape{128, 64}));
  EXPECT_EQ(activation_spec(QuantConfig::int8_w8a8({}, true).a2)->group, GroupShape::per_token());
  EXPECT_EQ(activation_spec(QuantConfig::ocp_mx(Format::kMxfp4, {}).a1)->group,
            (GroupShape{1, 32}));
  EXPECT_EQ(activation_spec(QuantConfig::nvfp4({}).a1)->group, (GroupShape{1, 16}));
  EXPECT_EQ(activation_spec(QuantConfig::int4_w4a16({}).a1), std::nullopt);
}

TEST(QuantSpecs, WeightsTellTheirLayout) {
  EXPECT_EQ(weight_spec(QuantConfig::unquantized().w1), std::nullopt);
  EXPECT_EQ(weight_spec(QuantConfig::fp8_w8a8({}).w1)->group, GroupShape::per_tensor());
  EXPECT_EQ(weight_spec(QuantConfig::fp8_w8a8({}, false, true).w1)->group, GroupShape::per_token());
  QuantTensors tensors;
  tensors.w1_scale = tensors.w2_scale = Tensor::zeros({2, 8}, DType::kF32);
  EXPECT_EQ(weight_spec(QuantConfig::fp8_w8a8(tensors).w1)->group, GroupShape::per_token());
  EXPECT_EQ(weight_spec(QuantConfig::int4_w4a16({}, GroupShape{0, 32}).w1)->group,
            (GroupShape{1, 32}));
  EXPECT_EQ(weight_spec(QuantConfig::mxfp4_w4a16({}).w2)->group, (GroupShape{1, 32}));
  EXPECT_FALSE(weight_spec(QuantConfig::int4_w4a16({}).w1)->asymmetric);
  tensors.w1_zero_point = Tensor::zeros({2, 8}, DType::kU8);
  EXPECT_TRUE(weight_spec(QuantConfig::int4_w4a16(tensors).w1)->asymmetric);
}

}  // namespace
}  // namespace moebius
