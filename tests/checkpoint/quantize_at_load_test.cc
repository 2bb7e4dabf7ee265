// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/make_model.h"
#include "checkpoint/presets.h"
#include "moebius/checkpoint.h"
#include "tests/checkpoint/checkpoint_testing.h"
#include "tests/checkpoint/stored_weights.h"

namespace moebius::testing {
namespace {

// ||w - original|| / ||original|| over all rows of all experts.
double relative_error(const Tensor& w,
                      const QuantDesc& desc,
                      const QuantDesc& activation,
                      const Tensor& original,
                      int64_t gate_rows) {
  double error = 0, norm = 0;
  for (int64_t e = 0; e < w.dim(0); ++e) {
    for (int64_t n = 0; n < w.dim(1); ++n) {
      const std::vector<float> row = loaded_row(w, desc, activation, e, n, gate_rows);
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

// The largest errors of the formats for normal values.  An error is at most half a step of the
// mantissa, or of the largest code, and is spread evenly, so that its mean square is a third of
// that.
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
    const MoeLayerWeights weights = checkpoint.load_layer(0, {.quant = scheme.name});
    const ExpertWeights& experts = weights.experts;
    const QuantConfig& q = experts.quant;
    ASSERT_EQ(experts.w1.shape(), plain.experts.w1.shape());
    ASSERT_EQ(experts.w2.shape(), plain.experts.w2.shape());
    ASSERT_TRUE(q.w1.format && q.w2.format);
    EXPECT_EQ(experts.w1.dtype(), storage_dtype(*q.w1.format));
    EXPECT_EQ(q.w1.bias.defined(), plain.experts.quant.w1.bias.defined());
    EXPECT_EQ(q.a1.format.has_value(), scheme.name.find("a16") == std::string::npos);
    const double w1 = relative_error(experts.w1, q.w1, q.a1, plain.experts.w1, intermediate);
    const double w2 =
        relative_error(experts.w2, q.w2, q.a2, plain.experts.w2, checkpoint.info().hidden);
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

// In every scheme, a rank's slice has the values of the whole layer, since groups, blocks and
// scales are chosen before the layer is cut.
TEST_P(QuantizeAtLoad, EachRankTakesItsSliceOfTheQuantizedWhole) {
  const TempDir dir;
  nlohmann::json config = checkpoint::synthetic_config(GetParam(), 1, "none");
  const bool alternates = config["model_type"] == "gpt_oss";
  config[config.contains("moe_intermediate_size") ? "moe_intermediate_size" : "intermediate_size"] =
      512;  // two ranks get two blocks of 128 each
  checkpoint::write_model(config, GetParam(), 3, dir.path(), int64_t{1} << 40);
  const Checkpoint checkpoint(dir.path());
  const int64_t intermediate = checkpoint.info().intermediate;
  ASSERT_EQ(intermediate, 512);
  const int64_t shard = intermediate / 2;
  for (const QuantSchemeInfo& scheme : load_quant_schemes()) {
    SCOPED_TRACE(scheme.name);
    LoadOptions options;
    options.quant = scheme.name;
    const ExpertWeights whole = checkpoint.load_layer(0, options).experts;
    options.ep_size = 2;
    options.ep_rank = 1;
    options.tp_size = 2;
    const int64_t first = checkpoint.info().num_experts / 2;
    for (options.tp_rank = 0; options.tp_rank < 2; ++options.tp_rank) {
      const ExpertWeights part = checkpoint.load_layer(0, options).experts;
      const int64_t begin = options.tp_rank * shard;
      const auto same = [&](const std::vector<float>& a, const std::vector<float>& b) {
        return std::memcmp(a.data(), b.data(), b.size() * sizeof(float)) == 0;
      };
      for (const int64_t e : {int64_t{0}, part.w1.dim(0) - 1}) {
        for (int64_t n = 0; n < 2 * shard; n += 17) {
          const int64_t from =
              alternates ? 2 * begin + n : n % shard + begin + (n < shard ? 0 : intermediate);
          const auto expected = loaded_row(whole.w1, whole.quant.w1, whole.quant.a1, first + e,
                                           from, alternates ? 1024 : intermediate);
          ASSERT_TRUE(same(
              loaded_row(part.w1, part.quant.w1, part.quant.a1, e, n, alternates ? 512 : shard),
              expected))
              << "row " << n << " of w1 of rank " << options.tp_rank;
        }
        for (int64_t n = 0; n < part.w2.dim(1); n += 19) {
          const auto full =
              loaded_row(whole.w2, whole.quant.w2, whole.quant.a2, first + e, n, whole.w2.dim(1));
          ASSERT_TRUE(same(loaded_row(part.w2, part.quant.w2, part.quant.a2, e, n, part.w2.dim(1)),
                           {full.begin() + begin, full.begin() + begin + shard}))
              << "row " << n << " of w2 of rank " << options.tp_rank;
        }
      }
    }
  }
}

TEST(QuantizeAtLoadOptions, ACutThroughBlocksIsRefusedAsInStoredWeights) {
  const TempDir dir;
  make_model("tiny", 1, "none", 3, dir.path());  // experts of 128
  const Checkpoint checkpoint(dir.path());
  const auto refusal = [&](const std::string& quant, int tp_size) {
    return message_of(
        [&] { checkpoint.load_layer(0, {.quant = quant, .tp_size = tp_size, .tp_rank = 1}); });
  };
  expect_mentions(refusal("fp8_w8a8", 2),
                  "gate_proj.weight' in fp8_w8a8: the slice [64, 128) of 128 cuts through blocks "
                  "of 128");
  // The group is 128, which divides the whole, even if it does not divide a slice.
  expect_mentions(refusal("int4_w4a16", 2),
                  "down_proj.weight' in int4_w4a16: the slice [64, 128) of 128 cuts through blocks "
                  "of 128");
  expect_mentions(refusal("mxfp4", 8), "the slice [16, 32) of 128 cuts through blocks of 32");
  expect_mentions(refusal("nvfp4", 16), "the slice [8, 16) of 128 cuts through blocks of 16");
}

}  // namespace
}  // namespace moebius::testing
