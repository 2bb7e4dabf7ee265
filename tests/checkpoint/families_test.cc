// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Loads every fixture folder, and compares facts, shapes and weights with values that are computed
// straight from the file.
#include <algorithm>
#include <array>
#include <cmath>

#include "moebius/checkpoint.h"
#include "tests/checkpoint/checkpoint_testing.h"
#include "tests/checkpoint/stored_weights.h"

namespace moebius::testing {
namespace {

struct Fixture {
  const char* folder;
  const char* family;
  const char* quant_method;
  // The names of the quantization with and without that of activations; "" where vLLM has none.
  const char* config_name;
  const char* weight_config_name;
  std::array<const char*, 3> modules;  // gate, up, down
  bool is_fused = false;
};

void PrintTo(const Fixture& fixture, std::ostream* out) {
  *out << fixture.folder;
}

constexpr std::array<const char*, 3> kProj = {"gate_proj", "up_proj", "down_proj"};
constexpr std::array<const char*, 3> kMixtral = {"w1", "w3", "w2"};

const Fixture kFixtures[] = {
    {"mixtral", "mixtral", "none", "", "", kMixtral},
    {"mixtral_int8", "mixtral", "compressed-tensors int8", "", "int8_w8a16", kMixtral},
    {"qwen2_moe", "qwen2_moe", "none", "", "", kProj},
    {"qwen3_moe", "qwen3_moe", "none", "", "", kProj},
    {"qwen3_moe_int4", "qwen3_moe", "compressed-tensors int4", "int4_w4a16", "int4_w4a16", kProj},
    {"qwen3_moe_nvfp4", "qwen3_moe", "nvfp4", "", "", kProj},
    {"deepseek_v3", "deepseek_v3", "none", "", "", kProj},
    {"deepseek_v3_fp8", "deepseek_v3", "fp8", "fp8_w8a8", "", kProj},
    {"gpt_oss", "gpt_oss", "none", "", "", kProj, true},
    {"gpt_oss_mxfp4", "gpt_oss", "mxfp4", "", "", kProj, true},
    {"llama4", "llama4", "none", "", "", kProj, true},
};

class Families : public ::testing::TestWithParam<Fixture> {
 protected:
  void SetUp() override {
    if (!fs::exists(fixtures() / GetParam().folder)) {
      GTEST_SKIP() << "no folder " << (fixtures() / GetParam().folder);
    }
    checkpoint_ = std::make_unique<Checkpoint>(fixtures() / GetParam().folder);
  }

  // Row n of an expert's w1 or w2, computed from the file.
  std::vector<float> expected_row(const std::string& block,
                                  int64_t e,
                                  bool is_w1,
                                  int64_t n) const {
    const ModelInfo& info = checkpoint_->info();
    const int64_t cols = is_w1 ? info.hidden : info.intermediate;
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t k = 0; k < cols; ++k) {
      float& value = row[static_cast<size_t>(k)];
      if (GetParam().is_fused) {
        value =
            fused_value(checkpoint_->tensors(),
                        block + (is_w1 ? ".experts.gate_up_proj" : ".experts.down_proj"), e, n, k);
        continue;
      }
      const bool is_up = is_w1 && n >= info.intermediate;
      const char* module = GetParam().modules[is_w1 ? (is_up ? 1 : 0) : 2];
      value = stored_value(checkpoint_->tensors(),
                           block + ".experts." + std::to_string(e) + "." + module,
                           is_up ? n - info.intermediate : n, k);
    }
    return row;
  }

  std::unique_ptr<Checkpoint> checkpoint_;
};

void expect_near(const std::vector<float>& actual,
                 const std::vector<float>& expected,
                 float relative) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], relative * std::abs(expected[i])) << "column " << i;
  }
}

TEST_P(Families, EveryWeightIsWhatTheFileHolds) {
  const ModelInfo& info = checkpoint_->info();
  EXPECT_EQ(info.family, GetParam().family);
  EXPECT_EQ(info.quant_method, GetParam().quant_method);
  EXPECT_EQ(info.num_layers, 2);
  ASSERT_EQ(info.moe_layers, (std::vector<int64_t>{0, 1}));
  // stored_value() may round products of two factors in another order.
  const float tolerance = info.quant_method == "none" ? 0.0f : 1e-6f;
  for (const int64_t layer : info.moe_layers) {
    const std::string block = checkpoint_->block_prefix(layer);
    for (const char* quant : {"auto", "none"}) {
      SCOPED_TRACE(block + " " + quant);
      const MoeLayerWeights weights = checkpoint_->load_layer(layer, {.quant = quant});
      const ExpertWeights& experts = weights.experts;
      const QuantConfig& q = experts.quant;
      EXPECT_EQ(q.config_name(DType::kBF16).value_or(""), std::string_view(quant) == "auto"
                                                              ? GetParam().config_name
                                                              : GetParam().weight_config_name);
      if (std::string_view(quant) == "none") {
        EXPECT_FALSE(q.a1.format || q.a2.format);
      }
      ASSERT_EQ(experts.w1.shape(), (Shape{info.num_experts, 2 * info.intermediate, info.hidden}));
      ASSERT_EQ(experts.w2.shape(), (Shape{info.num_experts, info.hidden, info.intermediate}));
      const int64_t gate_rows = info.intermediate;
      for (int64_t e = 0; e < info.num_experts; e += 5) {
        for (int64_t n = 0; n < 2 * info.intermediate; n += 23) {
          expect_near(loaded_row(experts.w1, q.w1, q.a1, e, n, gate_rows),
                      expected_row(block, e, true, n), tolerance);
        }
        for (int64_t n = 0; n < info.hidden; n += 31) {
          expect_near(loaded_row(experts.w2, q.w2, q.a2, e, n, info.hidden),
                      expected_row(block, e, false, n), tolerance);
        }
        if (::testing::Test::HasFatalFailure()) {
          return;
        }
      }
      if (weights.shared.w1) {
        const std::string shared =
            block + (info.family == "deepseek_v3" ? ".shared_experts." : ".shared_expert.");
        const QuantConfig& sq = weights.shared.quant;
        const int64_t size = weights.shared_intermediate;
        for (int64_t n = 0; n < 2 * size; n += 53) {
          std::vector<float> expected;
          for (int64_t k = 0; k < info.hidden; ++k) {
            expected.push_back(stored_value(checkpoint_->tensors(),
                                            shared + (n < size ? "gate_proj" : "up_proj"), n % size,
                                            k));
          }
          expect_near(loaded_row(weights.shared.w1, sq.w1, sq.a1, 0, n, size), expected, tolerance);
        }
        EXPECT_EQ(weights.shared.w2.shape(), (Shape{1, info.hidden, size}));
      }
    }
  }
}

TEST_P(Families, RouterAndBiasesAreCopiedAsTheyAre) {
  const Safetensors& files = checkpoint_->tensors();
  const MoeLayerWeights weights = checkpoint_->load_layer(1);
  const std::string block = checkpoint_->block_prefix(1);
  const auto expect_same = [&](const Tensor& tensor, const std::string& name) {
    ASSERT_EQ(tensor.defined(), files.contains(name)) << name;
    if (tensor.defined()) {
      const Tensor stored = files.tensor(name);
      ASSERT_EQ(tensor.shape(), stored.shape()) << name;
      ASSERT_EQ(tensor.dtype(), stored.dtype()) << name;
      EXPECT_EQ(std::memcmp(tensor.raw(), stored.raw(), static_cast<size_t>(stored.nbytes())), 0);
      EXPECT_NE(tensor.raw(), stored.raw());
    }
  };
  const std::string router = block + (files.contains(block + ".gate.weight") ? ".gate" : ".router");
  expect_same(weights.router.gate, router + ".weight");
  expect_same(weights.router.bias, router + ".bias");
  expect_same(weights.router.correction_bias, router + ".e_score_correction_bias");
  expect_same(weights.shared_gate, block + ".shared_expert_gate.weight");
  expect_same(weights.experts.quant.w1.bias, block + ".experts.gate_up_proj_bias");
  expect_same(weights.experts.quant.w2.bias, block + ".experts.down_proj_bias");
  EXPECT_EQ(weights.config.in_dtype, DType::kBF16);
}

// Adds the weighted result of one expert for one token to y, in double.
void add_expert(const ExpertWeights& experts,
                const ActivationSpec& spec,
                int64_t e,
                const std::vector<double>& x,
                double weight,
                std::vector<double>& y) {
  const QuantConfig& q = experts.quant;
  const auto apply = [&](const Tensor& w, const QuantDesc& desc, const QuantDesc& activation,
                         int64_t gate_rows, const std::vector<double>& in) {
    std::vector<double> out;
    for (int64_t n = 0; n < w.dim(1); ++n) {
      const std::vector<float> row = loaded_row(w, desc, activation, e, n, gate_rows);
      double sum = desc.bias ? get_float(desc.bias[e], n) : 0.0;
      for (size_t k = 0; k < row.size(); ++k) {
        sum += static_cast<double>(row[k]) * in[k];
      }
      out.push_back(sum);
    }
    return out;
  };
  const int64_t size = experts.w2.dim(2);
  const std::vector<double> both = apply(experts.w1, q.w1, q.a1, size, x);
  std::vector<double> hidden;
  for (int64_t i = 0; i < size; ++i) {
    const auto at = static_cast<size_t>(i);
    double gate = both[spec.interleaved ? 2 * at : at];
    double up = both[spec.interleaved ? 2 * at + 1 : at + static_cast<size_t>(size)];
    if (spec.kind == Activation::kSwigluOai) {
      gate = std::min(gate, static_cast<double>(spec.limit));
      up = std::clamp(up, -static_cast<double>(spec.limit), static_cast<double>(spec.limit)) + 1.0;
      hidden.push_back(up * gate / (1.0 + std::exp(-spec.alpha * gate)));
    } else {
      hidden.push_back(up * gate / (1.0 + std::exp(-gate)));
    }
  }
  const std::vector<double> out = apply(experts.w2, q.w2, q.a2, experts.w2.dim(1), hidden);
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] += weight * out[i];
  }
}

// Router, experts, shared experts and their gate are all that the block needs: with them it gives
// the model's own output.
TEST_P(Families, TheBlockGivesTheModelsOutput) {
  const Safetensors expected(fixtures() / GetParam().folder / "expected.safetensors");
  for (const int64_t layer : checkpoint_->info().moe_layers) {
    const std::string start = "model.layers." + std::to_string(layer) + ".";
    const std::string block =
        start + (expected.contains(start + "mlp.input") ? "mlp" : "feed_forward");
    const Tensor input = expected.tensor(block + ".input").slice(0, 6);
    const Tensor output = expected.tensor(block + ".output");
    MoeLayerWeights weights = checkpoint_->load_layer(layer, {.quant = "none"});
    const Router router(weights.router_config, weights.router);
    const int64_t topk = weights.config.experts_per_token;
    const Tensor logits = Tensor::empty({input.dim(0), weights.config.num_experts}, DType::kF32);
    const Tensor ids = Tensor::empty({input.dim(0), topk}, DType::kI32);
    const Tensor scores = Tensor::empty({input.dim(0), topk}, DType::kF32);
    router.logits(input, logits, Stream::cpu());
    router.select(logits, ids, scores, Stream::cpu());
    double error = 0, norm = 0;
    for (int64_t t = 0; t < input.dim(0); ++t) {
      std::vector<double> x;
      for (int64_t h = 0; h < input.dim(1); ++h) {
        x.push_back(get_float(input[t], h));
      }
      std::vector<double> y(x.size());
      for (int64_t k = 0; k < topk; ++k) {
        const double score = get_float(scores[t], k);
        const auto e = static_cast<int64_t>(get_float(ids[t], k));
        if (weights.apply_router_weight_on_input) {
          std::vector<double> scaled = x;
          for (double& value : scaled) {
            value *= score;
          }
          add_expert(weights.experts, weights.activation, e, scaled, 1.0, y);
        } else {
          add_expert(weights.experts, weights.activation, e, x, score, y);
        }
      }
      if (weights.shared.w1) {
        double gate = 1.0;
        if (weights.shared_gate) {
          double dot = 0;
          for (size_t h = 0; h < x.size(); ++h) {
            dot += get_float(weights.shared_gate, static_cast<int64_t>(h)) * x[h];
          }
          gate = 1.0 / (1.0 + std::exp(-dot));
        }
        add_expert(weights.shared, weights.activation, 0, x, gate, y);
      }
      for (size_t h = 0; h < y.size(); ++h) {
        const double reference = get_float(output[t], static_cast<int64_t>(h));
        error += (y[h] - reference) * (y[h] - reference);
        norm += reference * reference;
      }
    }
    EXPECT_LT(std::sqrt(error / norm), 1e-3) << block;
    EXPECT_GT(norm, 0);
  }
}

// The rows of the whole w1 that a rank with the slice [begin, end) of the intermediate size holds.
std::vector<int64_t> w1_rows_of(int64_t intermediate,
                                int64_t begin,
                                int64_t end,
                                bool is_interleaved) {
  std::vector<int64_t> rows;
  if (is_interleaved) {
    for (int64_t n = 2 * begin; n < 2 * end; ++n) {
      rows.push_back(n);
    }
    return rows;
  }
  for (const int64_t half : {int64_t{0}, intermediate}) {
    for (int64_t n = begin; n < end; ++n) {
      rows.push_back(half + n);
    }
  }
  return rows;
}

TEST_P(Families, SlicesReassembleToTheWhole) {
  const ModelInfo& info = checkpoint_->info();
  const MoeLayerWeights whole = checkpoint_->load_layer(0);
  const QuantConfig& q = whole.experts.quant;
  const bool interleaved = whole.activation.interleaved;
  // These sizes do not cut blocks; with I = 128, blocks of 128 cannot be divided.
  const int tp_size = info.quant_method == "fp8" ? 1 : info.intermediate == 96 ? 3 : 2;
  const int ep_size = 3;
  int64_t expert = 0;
  for (int ep_rank = 0; ep_rank < ep_size; ++ep_rank) {
    const ExpertRange local = expert_range(info.num_experts, ep_size, ep_rank);
    ASSERT_EQ(local.begin, expert);
    expert = local.end;
    for (int tp_rank = 0; tp_rank < tp_size; ++tp_rank) {
      SCOPED_TRACE("ep " + std::to_string(ep_rank) + " tp " + std::to_string(tp_rank));
      const MoeLayerWeights part = checkpoint_->load_layer(
          0, {.ep_size = ep_size, .ep_rank = ep_rank, .tp_size = tp_size, .tp_rank = tp_rank});
      const QuantConfig& pq = part.experts.quant;
      EXPECT_EQ(part.config.num_local_experts, local.end - local.begin);
      const int64_t shard = info.intermediate / tp_size;
      const int64_t begin = shard * tp_rank;
      const auto rows = w1_rows_of(info.intermediate, begin, begin + shard, interleaved);
      ASSERT_EQ(part.experts.w1.shape(), (Shape{local.end - local.begin, 2 * shard, info.hidden}));
      ASSERT_EQ(part.experts.w2.shape(), (Shape{local.end - local.begin, info.hidden, shard}));
      for (int64_t l = 0; l < local.end - local.begin; ++l) {
        const int64_t e = local.begin + l;
        for (size_t n = 0; n < rows.size(); n += 7) {
          const auto row = static_cast<int64_t>(n);
          ASSERT_EQ(loaded_row(part.experts.w1, pq.w1, pq.a1, l, row, shard),
                    loaded_row(whole.experts.w1, q.w1, q.a1, e, rows[n], info.intermediate));
          if (q.w1.bias) {
            ASSERT_EQ(get_float(pq.w1.bias[l], row), get_float(q.w1.bias[e], rows[n]));
          }
        }
        for (int64_t n = 0; n < info.hidden; n += 7) {
          const auto full = loaded_row(whole.experts.w2, q.w2, q.a2, e, n, info.hidden);
          ASSERT_EQ(loaded_row(part.experts.w2, pq.w2, pq.a2, l, n, info.hidden),
                    std::vector<float>(full.begin() + begin, full.begin() + begin + shard));
          if (q.w2.bias) {
            ASSERT_EQ(get_float(pq.w2.bias[l], n),
                      tp_rank == 0 ? get_float(q.w2.bias[e], n) : 0.0f);
          }
        }
      }
      // All ranks quantize activations alike, whichever experts they hold.
      if (q.a1.alpha_or_gscale) {
        EXPECT_EQ(get_float(pq.a1.alpha_or_gscale, 0), get_float(q.a1.alpha_or_gscale, 0));
      }
      EXPECT_EQ(part.shared_intermediate, whole.shared_intermediate);
    }
  }
  EXPECT_EQ(expert, info.num_experts);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Families, ::testing::ValuesIn(kFixtures), [](const auto& test) {
  return test.param.folder;
});

TEST(FamilyFacts, RoutingFollowsTheFamily) {
  const auto load = [](const char* folder) {
    return Checkpoint(fixtures() / folder).load_layer(0);
  };
  if (!fs::exists(fixtures() / "mixtral")) {
    GTEST_SKIP() << "no folder " << (fixtures() / "mixtral");
  }
  const MoeLayerWeights mixtral = load("mixtral");
  EXPECT_TRUE(mixtral.router_config.renormalize);
  EXPECT_EQ(mixtral.router_config.topk, 2);
  const MoeLayerWeights qwen2 = load("qwen2_moe");
  EXPECT_FALSE(qwen2.router_config.renormalize);
  EXPECT_EQ(qwen2.shared_gate.shape(), (Shape{1, 128}));
  EXPECT_EQ(qwen2.shared_intermediate, 128);
  EXPECT_TRUE(load("qwen3_moe").router_config.renormalize);
  const MoeLayerWeights deepseek = load("deepseek_v3");
  EXPECT_EQ(deepseek.router_config.scoring, Scoring::kSigmoid);
  EXPECT_EQ(deepseek.router_config.num_groups, 4);
  EXPECT_EQ(deepseek.router_config.topk_groups, 2);
  EXPECT_EQ(deepseek.router_config.routed_scaling_factor, 2.5f);
  EXPECT_TRUE(deepseek.router.correction_bias);
  const MoeLayerWeights gpt_oss = load("gpt_oss");
  EXPECT_TRUE(gpt_oss.router_config.score_after_topk);
  EXPECT_EQ(gpt_oss.router_config.scoring, Scoring::kSoftmax);
  EXPECT_EQ(gpt_oss.activation.kind, Activation::kSwigluOai);
  EXPECT_TRUE(gpt_oss.activation.interleaved);
  const MoeLayerWeights llama4 = load("llama4");
  EXPECT_TRUE(llama4.apply_router_weight_on_input);
  EXPECT_TRUE(llama4.router_config.score_after_topk);
  EXPECT_EQ(llama4.router_config.scoring, Scoring::kSigmoid);
  EXPECT_EQ(llama4.shared_intermediate, 128);
}

TEST(FamilyFacts, Nvfp4FactorsJoinWeightAndInputScales) {
  const fs::path folder = fixtures() / "qwen3_moe_nvfp4";
  if (!fs::exists(folder)) {
    GTEST_SKIP() << "no folder " << folder;
  }
  const Checkpoint checkpoint(folder);
  const Safetensors& files = checkpoint.tensors();
  const MoeLayerWeights weights = checkpoint.load_layer(1);
  const auto value = [&](int64_t e, const std::string& name) {
    return get_float(files.tensor("model.layers.1.mlp.experts." + std::to_string(e) + "." + name),
                     0);
  };
  const QuantConfig& q = weights.experts.quant;
  EXPECT_TRUE(q.use_nvfp4_w4a4());
  ASSERT_EQ(q.w1.alpha_or_gscale.shape(), (Shape{16, 2}));
  ASSERT_EQ(q.a1.alpha_or_gscale.shape(), Shape{1});
  ASSERT_EQ(q.a2.alpha_or_gscale.shape(), Shape{16});
  EXPECT_EQ(get_float(q.a1.alpha_or_gscale, 0), 1.0f / value(0, "gate_proj.input_scale"));
  for (int64_t e = 0; e < 16; ++e) {
    const float input = value(e, "gate_proj.input_scale");
    EXPECT_EQ(get_float(q.w1.alpha_or_gscale, 2 * e), value(e, "gate_proj.weight_scale_2") * input);
    EXPECT_EQ(get_float(q.w1.alpha_or_gscale, 2 * e + 1),
              value(e, "up_proj.weight_scale_2") * input);
    EXPECT_EQ(get_float(q.w2.alpha_or_gscale, e),
              value(e, "down_proj.weight_scale_2") * value(e, "down_proj.input_scale"));
    EXPECT_EQ(get_float(q.a2.alpha_or_gscale, e), 1.0f / value(e, "down_proj.input_scale"));
  }
}

TEST(FamilyFacts, BlocksAreNotCut) {
  const fs::path folder = fixtures() / "deepseek_v3_fp8";
  if (!fs::exists(folder)) {
    GTEST_SKIP() << "no folder " << folder;
  }
  const std::string message =
      message_of([&] { Checkpoint(folder).load_layer(0, {.tp_size = 2, .tp_rank = 1}); });
  expect_mentions(message, {"gate_proj.weight_scale_inv", "[64, 128) of 128", "blocks of 128"});
}

}  // namespace
}  // namespace moebius::testing
