// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <map>

#include "moebius/checkpoint.h"
#include "moebius/quantize.h"
#include "tests/checkpoint/checkpoint_testing.h"

namespace moebius::testing {
namespace {

// ||a - b|| / ||b|| over all rows of all experts.
double relative_error(const Tensor& w,
                      const QuantDesc& desc,
                      const Tensor& gscale,
                      const Tensor& original,
                      int64_t gate_rows) {
  std::vector<float> row(static_cast<size_t>(w.dim(2)));
  double error = 0, norm = 0;
  for (int64_t e = 0; e < w.dim(0); ++e) {
    for (int64_t n = 0; n < w.dim(1); ++n) {
      dequantize_weight_rows(w, desc, e, n, n + 1, gate_rows, row.data(), gscale);
      for (int64_t k = 0; k < w.dim(2); ++k) {
        const double expected = get_float(original, (e * w.dim(1) + n) * w.dim(2) + k);
        const double diff = row[static_cast<size_t>(k)] - expected;
        error += diff * diff;
        norm += expected * expected;
      }
    }
  }
  return std::sqrt(error / norm);
}

// What the formats can do on normal values: half a step of the mantissa, or of the largest code,
// spread evenly (a third of its square).
const std::map<std::string, double> kLimits = {
    {"fp8_w8a8", 0.03},        {"fp8_w8a8_channel", 0.03},
    {"fp8_w8a8_tensor", 0.03}, {"int8_w8a8", 0.015},
    {"int8_w8a16", 0.015},     {"int4_w4a16", 0.14},
    {"mxfp4_w4a16", 0.16},     {"mxfp4", 0.16},
    {"mxfp6_e3m2", 0.07},      {"mxfp6_e2m3", 0.05},
    {"mxfp8", 0.04},           {"nvfp4", 0.12},
};

class QuantizeAtLoad : public ::testing::TestWithParam<const char*> {};

TEST_P(QuantizeAtLoad, KeepsTheWeightsWithinTheFormat) {
  const TempDir dir;
  make_model(GetParam(), 1, "none", 3, dir.path());
  const Checkpoint checkpoint(dir.path());
  const MoeLayerWeights plain = checkpoint.load_layer(0);
  const int64_t intermediate = checkpoint.info().intermediate;
  for (const QuantSchemeInfo& scheme : load_quant_schemes()) {
    SCOPED_TRACE(scheme.name);
    ASSERT_EQ(kLimits.count(scheme.name), 1u);
    LoadOptions options;
    options.quant = scheme.name;
    const MoeLayerWeights weights = checkpoint.load_layer(0, options);
    const ExpertWeights& experts = weights.experts;
    const QuantConfig& q = experts.quant;
    ASSERT_EQ(experts.w1.shape(), plain.experts.w1.shape());
    ASSERT_EQ(experts.w2.shape(), plain.experts.w2.shape());
    ASSERT_TRUE(q.w1.format && q.w2.format);
    EXPECT_EQ(experts.w1.dtype(), storage_dtype(*q.w1.format));
    EXPECT_EQ(q.w1.bias.defined(), plain.experts.quant.w1.bias.defined());
    EXPECT_EQ(q.a1.format.has_value(), scheme.name.find("a16") == std::string::npos);
    const double w1 =
        relative_error(experts.w1, q.w1, q.a1.alpha_or_gscale, plain.experts.w1, intermediate);
    const double w2 = relative_error(experts.w2, q.w2, q.a2.alpha_or_gscale, plain.experts.w2,
                                     checkpoint.info().hidden);
    EXPECT_LT(w1, kLimits.at(scheme.name));
    EXPECT_LT(w2, kLimits.at(scheme.name));
    EXPECT_GT(w1, 1e-4);
    EXPECT_EQ(weights.shared.w1.defined(), plain.shared.w1.defined());
    if (weights.shared.w1) {
      EXPECT_EQ(weights.shared.w1.dtype(), experts.w1.dtype());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Presets,
    QuantizeAtLoad,
    ::testing::Values("tiny", "tiny-deepseek-v3", "tiny-gpt-oss", "tiny-llama4"),
    [](const auto& test) {
      std::string name = test.param;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

TEST(QuantizeAtLoadOptions, NamesAreUniqueAndDescribed) {
  std::map<std::string, std::string> schemes;
  for (const QuantSchemeInfo& scheme : load_quant_schemes()) {
    EXPECT_FALSE(scheme.description.empty());
    EXPECT_TRUE(schemes.emplace(scheme.name, scheme.description).second);
  }
  EXPECT_EQ(schemes.size(), kLimits.size());
}

TEST(QuantizeAtLoadOptions, EachRankQuantizesItsOwnSlice) {
  const TempDir dir;
  make_model("tiny", 1, "none", 3, dir.path());
  const Checkpoint checkpoint(dir.path());
  LoadOptions options;
  options.quant = "int8_w8a8";
  const MoeLayerWeights whole = checkpoint.load_layer(0, options);
  options.ep_size = 2;
  options.ep_rank = 1;
  options.tp_size = 2;
  options.tp_rank = 1;
  const MoeLayerWeights part = checkpoint.load_layer(0, options);
  ASSERT_EQ(part.experts.w1.shape(), (Shape{8, 128, 256}));
  // Rows of w1 are whole, so they quantize as before: gate row 64 + n is row n here.
  for (int64_t n = 0; n < 64; ++n) {
    EXPECT_EQ(std::memcmp(part.experts.w1[2].slice(n, n + 1).raw(),
                          whole.experts.w1[10].slice(64 + n, 65 + n).raw(), 256),
              0);
    EXPECT_EQ(get_float(part.experts.quant.w1.scale[2], n),
              get_float(whole.experts.quant.w1.scale[10], 64 + n));
  }
  options.quant = "mxfp4";
  options.tp_size = 8;
  options.tp_rank = 0;
  expect_contains(message_of<Unsupported>([&] { checkpoint.load_layer(0, options); }), "mxfp4");
}

}  // namespace
}  // namespace moebius::testing
