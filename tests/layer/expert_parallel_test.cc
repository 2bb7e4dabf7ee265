// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs every fixture through every backend: the layer over 1 to 4 ranks is compared with the
// recorded output, and row by row with the same layer on one rank.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <tuple>

#include "moebius/checkpoint.h"
#include "tests/layer/backends.h"
#include "tests/layer/spread.h"

namespace moebius::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFixtures[] = {"mixtral",         "qwen2_moe",      "qwen3_moe",
                                     "deepseek_v3",     "gpt_oss",        "llama4",
                                     "deepseek_v3_fp8", "gpt_oss_mxfp4",  "qwen3_moe_int4",
                                     "mixtral_int8",    "qwen3_moe_nvfp4"};

std::vector<Spread> spreads() {
  constexpr auto kGather = All2AllBackend::kAllGatherReduceScatter;
  std::vector<Spread> all;
  for (const int ranks : {1, 2, 3, 4}) {
    const std::string n = std::to_string(ranks);
    for (const auto backend : kBackends) {
      for (const int nodes : {0, 1, 2}) {
        if (nodes < ranks) {
          all.push_back({.name = std::string(name(backend)) + "_dp" + n +
                                 (nodes > 0 ? "_nodes_of_" + std::to_string(nodes) : ""),
                         .dp = ranks,
                         .backend = backend,
                         .ranks_per_node = nodes});
        }
      }
    }
    all.push_back({.name = "low_latency_sums_per_rank_dp" + n,
                   .dp = ranks,
                   .backend = All2AllBackend::kLowLatency,
                   .low_latency_sum = LowLatencySum::kRanks});
    all.push_back(
        {.name = "monolithic_dp" + n, .dp = ranks, .backend = kGather, .monolithic = true});
    all.push_back({.name = "none_tp" + n, .tp = ranks});
    if (ranks == 2 || ranks == 3) {
      for (const auto backend : kBackends) {
        all.push_back({.name = std::string(name(backend)) + "_scattered_dp" + n,
                       .dp = ranks,
                       .backend = backend,
                       .is_scattered = true});
      }
      all.push_back({.name = "monolithic_scattered_dp" + n,
                     .dp = ranks,
                     .backend = kGather,
                     .monolithic = true,
                     .is_scattered = true});
      all.push_back({.name = "none_scattered_tp" + n, .tp = ranks, .is_scattered = true});
    }
  }
  all.push_back({.name = "none_tp2_no_ep", .tp = 2, .use_ep = false});
  for (const auto backend : kBackends) {
    all.push_back(
        {.name = std::string(name(backend)) + "_tp2_dp2", .tp = 2, .dp = 2, .backend = backend});
    all.push_back({.name = std::string(name(backend)) + "_scattered_tp2_dp2",
                   .tp = 2,
                   .dp = 2,
                   .backend = backend,
                   .is_scattered = true});
  }
  all.push_back({.name = "allgather_reducescatter_tp2_dp2_no_ep",
                 .tp = 2,
                 .dp = 2,
                 .backend = kGather,
                 .use_ep = false});
  return all;
}

fs::path fixture(const std::string& folder) {
  const char* root = std::getenv("MOEBIUS_FIXTURES");
  return fs::path(root != nullptr ? root : "../shared/fixtures") / folder;
}

// The fixture names Mixtral's block as transformers does, which differs from the checkpoint's name.
std::string recorded_prefix(const Safetensors& expected) {
  const std::string block = "model.layers.0";
  return block + (expected.contains(block + ".mlp.input") ? ".mlp" : ".feed_forward");
}

Tensor run_layer(const Checkpoint& checkpoint, const Tensor& hidden, const Spread& spread) {
  const auto weights_of = [&](const ParallelConfig& parallel) {
    LoadOptions load;
    load.ep_size = parallel.ep_size;
    load.ep_rank = parallel.ep_rank;
    load.tp_size = parallel.tp_size;
    load.tp_rank = parallel.tp_rank;
    load.placement = spread.placement(checkpoint.info().num_experts);
    MoeLayerWeights weights = checkpoint.load_layer(0, load);
    weights.config.parallel = parallel;
    weights.config.max_num_tokens = 8;  // so that a batched backend takes several calls
    return weights;
  };
  const auto tokens_of = [&](int rank) {
    const ExpertRange rows = expert_range(hidden.dim(0), spread.dp, rank / spread.tp);
    return RankTokens{hidden.slice(rows.begin, rows.end), {}};
  };
  return joined_rows(spread, run_spread(spread, spread.options(), weights_of, tokens_of),
                     hidden.dim(0));
}

// A scale per tensor is that of the tokens on a rank, so it depends on the number of ranks.
double tolerance_for(const Checkpoint& checkpoint) {
  return layer_tolerance(checkpoint.load_layer(0).experts.quant);
}

// What the error must mention for a spread that a fixture cannot have; nullopt for other spreads.
std::optional<std::string> refusal(const std::string& folder, const Spread& spread) {
  if (spread.monolithic && folder == "llama4") {
    return "router weight";
  }
  return std::nullopt;
}

class ExpertParallelTest : public ::testing::TestWithParam<std::tuple<const char*, Spread>> {};

TEST_P(ExpertParallelTest, OutputIsTheModels) {
  const auto& [folder, spread] = GetParam();
  if (!fs::exists(fixture(folder))) {
    GTEST_SKIP() << "no fixtures in " << fixture(folder).parent_path();
  }
  const Checkpoint checkpoint(fixture(folder));
  const Safetensors expected(fixture(folder) / "expected.safetensors");
  const std::string prefix = recorded_prefix(expected);
  const Tensor hidden = expected.tensor(prefix + ".input");
  if (const auto reason = refusal(folder, spread)) {
    expect_mentions(message_of([&] { run_layer(checkpoint, hidden, spread); }), *reason);
    return;
  }
  Tensor output;
  try {
    output = run_layer(checkpoint, hidden, spread);
  } catch (const Error& error) {
    // Only shards that would cut a quantization group may be refused.
    const std::string message = error.what();
    ASSERT_FALSE(spread.use_ep) << message;
    ASSERT_TRUE(message.find("group") != std::string::npos ||
                message.find("block") != std::string::npos)
        << message;
    return;
  }
  const double tolerance = tolerance_for(checkpoint);
  EXPECT_LE(relative_error(output, expected.tensor(prefix + ".output")), tolerance);
  expect_near_rows(output, run_layer(checkpoint, hidden, {.name = "one rank"}), tolerance);
}

std::string case_name(const ::testing::TestParamInfo<std::tuple<const char*, Spread>>& test) {
  return std::string(std::get<0>(test.param)) + "_" + std::get<1>(test.param).name;
}

INSTANTIATE_TEST_SUITE_P(Fixtures,
                         ExpertParallelTest,
                         ::testing::Combine(::testing::ValuesIn(kFixtures),
                                            ::testing::ValuesIn(spreads())),
                         case_name);

}  // namespace
}  // namespace moebius::testing
