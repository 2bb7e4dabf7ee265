// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Compares the router with real router modules.  For each MoE block P the fixtures recorded
//   P.input    bf16 [T, H]
//   P.router0  logits f32 [T, E], P.router1 weights f32 [T, K], P.router2 ids i64 [T, K]
// but for Llama 4
//   P.router0  weights f32 [T, E], zero for experts that were not chosen, P.router1 logits f32 [T,
//              E]
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "moebius/router.h"
#include "moebius/safetensors.h"
#include "tests/by_name.h"

namespace moebius {
namespace {

struct Family {
  std::string name;
  std::string block;  // P without "model.layers.N."
  std::string gate;   // the gate's tensor in the checkpoint, without that prefix, too
  RouterConfig config = {};
  std::string bias = {}, correction_bias = {};
  bool is_order_kept = true;  // DeepSeek's module returns the chosen in no particular order
};

std::ostream& operator<<(std::ostream& out, const Family& family) {
  return out << family.name;
}

std::vector<Family> families() {
  std::vector<Family> all(6);
  all[0] = {"mixtral", "mlp", "block_sparse_moe.gate.weight"};
  all[0].config.renormalize = true;
  all[1] = {"qwen2_moe", "mlp", "mlp.gate.weight"};
  all[2] = {"qwen3_moe", "mlp", "mlp.gate.weight"};
  all[2].config.renormalize = true;
  all[3] = {"deepseek_v3", "mlp", "mlp.gate.weight"};
  all[3].config.scoring = Scoring::kSigmoid;
  all[3].config.renormalize = true;
  all[3].config.num_groups = 4;
  all[3].config.topk_groups = 2;
  all[3].config.routed_scaling_factor = 2.5f;
  all[3].correction_bias = "mlp.gate.e_score_correction_bias";
  all[3].is_order_kept = false;
  all[4] = {"gpt_oss", "mlp", "mlp.router.weight"};
  all[4].config.score_after_topk = true;
  all[4].bias = "mlp.router.bias";
  all[5] = {"llama4", "feed_forward", "feed_forward.router.weight"};
  all[5].config.scoring = Scoring::kSigmoid;
  all[5].config.score_after_topk = true;
  return all;
}

using Choice = std::pair<int64_t, float>;  // id, weight

// The recorded results of one block.
struct Expected {
  Tensor logits;
  std::vector<std::vector<Choice>> rows;
};

Expected read_expected(const Safetensors& file, const std::string& block) {
  Expected expected;
  if (file.contains(block + ".router2")) {
    expected.logits = file.tensor(block + ".router0");
    const Tensor weights = file.tensor(block + ".router1"), ids = file.tensor(block + ".router2");
    const int64_t topk = ids.dim(1);
    for (int64_t t = 0; t < ids.dim(0); ++t) {
      auto& row = expected.rows.emplace_back();
      for (int64_t k = 0; k < topk; ++k) {
        row.emplace_back(ids.data<int64_t>()[t * topk + k], weights.data<float>()[t * topk + k]);
      }
    }
    return expected;
  }
  expected.logits = file.tensor(block + ".router1");
  const Tensor weights = file.tensor(block + ".router0");
  for (int64_t t = 0; t < weights.dim(0); ++t) {
    auto& row = expected.rows.emplace_back();
    for (int64_t e = 0; e < weights.dim(1); ++e) {
      const float weight = weights.data<float>()[t * weights.dim(1) + e];
      if (weight != 0.0f) {
        row.emplace_back(e, weight);
      }
    }
  }
  return expected;
}

class RouterFixtures : public ::testing::TestWithParam<Family> {
 protected:
  static constexpr int kNumLayers = 2;

  void SetUp() override {
    const char* folder = std::getenv("MOEBIUS_FIXTURES");
    directory_ = std::filesystem::path(folder ? folder : "../shared/fixtures") / GetParam().name;
    if (!std::filesystem::exists(directory_)) {
      GTEST_SKIP() << "no folder " << directory_ << "; set MOEBIUS_FIXTURES";
    }
  }

  std::string layer(int index, const std::string& rest) const {
    return "model.layers." + std::to_string(index) + "." + rest;
  }
  Safetensors expected_file() const { return Safetensors(directory_ / "expected.safetensors"); }

  Router make_router(int index, int64_t num_experts, int64_t topk) const {
    const Family& family = GetParam();
    const Safetensors model(directory_ / "model.safetensors");
    const auto optional = [&](const std::string& name) {
      return name.empty() ? Tensor() : model.tensor(layer(index, name));
    };
    RouterConfig config = family.config;
    config.num_experts = num_experts;
    config.topk = topk;
    return Router(config, {.gate = model.tensor(layer(index, family.gate)),
                           .bias = optional(family.bias),
                           .correction_bias = optional(family.correction_bias)});
  }

 private:
  std::filesystem::path directory_;
};

TEST_P(RouterFixtures, SelectGivesTheIdsAndWeights) {
  const Safetensors file = expected_file();
  for (int index = 0; index < kNumLayers; ++index) {
    Expected expected = read_expected(file, layer(index, GetParam().block));
    const int64_t num_tokens = expected.logits.dim(0);
    ASSERT_GT(num_tokens, 0);
    const auto topk = static_cast<int64_t>(expected.rows[0].size());
    const Router router = make_router(index, expected.logits.dim(1), topk);
    const Tensor ids = Tensor::zeros({num_tokens, topk}, DType::kI32);
    const Tensor weights = Tensor::zeros({num_tokens, topk}, DType::kF32);
    router.select(expected.logits, ids, weights, {});
    for (int64_t t = 0; t < num_tokens; ++t) {
      auto& wanted = expected.rows[static_cast<size_t>(t)];
      std::vector<Choice> chosen;
      for (int64_t k = 0; k < topk; ++k) {
        chosen.emplace_back(ids.data<int32_t>()[t * topk + k], weights.data<float>()[t * topk + k]);
      }
      if (!GetParam().is_order_kept) {
        std::sort(wanted.begin(), wanted.end());
        std::sort(chosen.begin(), chosen.end());
      }
      ASSERT_EQ(wanted.size(), chosen.size()) << "layer " << index << " token " << t;
      for (size_t k = 0; k < chosen.size(); ++k) {
        EXPECT_EQ(chosen[k].first, wanted[k].first)
            << "layer " << index << " token " << t << " slot " << k;
        EXPECT_NEAR(chosen[k].second, wanted[k].second, 1e-5f)
            << "layer " << index << " token " << t << " slot " << k;
      }
    }
  }
}

TEST_P(RouterFixtures, LogitsAreThoseOfTheModule) {
  const Safetensors file = expected_file();
  for (int index = 0; index < kNumLayers; ++index) {
    const std::string block = layer(index, GetParam().block);
    const Tensor expected = read_expected(file, block).logits;
    const Router router = make_router(index, expected.dim(1), 1);
    const Tensor out = Tensor::zeros(expected.shape(), DType::kF32);
    router.logits(file.tensor(block + ".input"), out, {});
    for (int64_t i = 0; i < out.numel(); ++i) {
      const float wanted = expected.data<float>()[i];
      EXPECT_NEAR(out.data<float>()[i], wanted, 1e-5f * (1.0f + std::fabs(wanted)))
          << "layer " << index << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families,
                         RouterFixtures,
                         ::testing::ValuesIn(families()),
                         testing::by_name);

}  // namespace
}  // namespace moebius
