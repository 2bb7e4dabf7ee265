// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Every fixture through every backend: the layer over 1 to 4 ranks against the recorded output, and
// against the same layer on one rank, row by row.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>

#include "moebius/checkpoint.h"
#include "moebius/group.h"
#include "moebius/moe_layer.h"
#include "moebius/tolerance.h"

namespace moebius {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFixtures[] = {"mixtral",         "qwen2_moe",      "qwen3_moe",
                                     "deepseek_v3",     "gpt_oss",        "llama4",
                                     "deepseek_v3_fp8", "gpt_oss_mxfp4",  "qwen3_moe_int4",
                                     "mixtral_int8",    "qwen3_moe_nvfp4"};

// How a model is spread: dp * tp ranks.
struct Spread {
  std::string name;
  int tp = 1;
  int dp = 1;
  bool use_ep = true;
  All2AllBackend backend = All2AllBackend::kNone;
  bool monolithic = false;
  int ranks_per_node = 0;
  LowLatencySum low_latency_sum = LowLatencySum::kSelections;

  int num_ranks() const { return tp * dp; }
};
void PrintTo(const Spread& spread, std::ostream* out) {
  *out << spread.name;
}

std::vector<Spread> spreads() {
  std::vector<Spread> all;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto backend : {All2AllBackend::kAllGatherReduceScatter,
                               All2AllBackend::kHighThroughput, All2AllBackend::kLowLatency}) {
      for (const int nodes : {0, 1, 2}) {
        if (nodes < ranks) {
          all.push_back({std::string(name(backend)) + "_dp" + std::to_string(ranks) +
                             (nodes > 0 ? "_nodes_of_" + std::to_string(nodes) : ""),
                         1, ranks, true, backend, false, nodes});
        }
      }
    }
    all.push_back({"low_latency_sums_per_rank_dp" + std::to_string(ranks), 1, ranks, true,
                   All2AllBackend::kLowLatency, false, 0, LowLatencySum::kRanks});
    all.push_back({"monolithic_dp" + std::to_string(ranks), 1, ranks, true,
                   All2AllBackend::kAllGatherReduceScatter, true, 0});
    all.push_back({"none_tp" + std::to_string(ranks), ranks, 1, true, All2AllBackend::kNone});
  }
  all.push_back({"none_tp2_no_ep", 2, 1, false, All2AllBackend::kNone});
  all.push_back(
      {"allgather_reducescatter_tp2_dp2", 2, 2, true, All2AllBackend::kAllGatherReduceScatter});
  all.push_back({"allgather_reducescatter_tp2_dp2_no_ep", 2, 2, false,
                 All2AllBackend::kAllGatherReduceScatter});
  all.push_back({"high_throughput_tp2_dp2", 2, 2, true, All2AllBackend::kHighThroughput});
  all.push_back({"low_latency_tp2_dp2", 2, 2, true, All2AllBackend::kLowLatency});
  return all;
}

fs::path fixture(const std::string& folder) {
  const char* root = std::getenv("MOEBIUS_FIXTURES");
  return fs::path(root != nullptr ? root : "../shared/fixtures") / folder;
}

// The fixture's file names Mixtral's block as transformers does, not as the checkpoint does.
std::string recorded_prefix(const Safetensors& expected, int64_t layer) {
  const std::string block = "model.layers." + std::to_string(layer);
  return block + (expected.contains(block + ".mlp.input") ? ".mlp" : ".feed_forward");
}

Tensor run_layer(const Checkpoint& checkpoint,
                 int64_t layer,
                 const Tensor& hidden,
                 const Spread& spread) {
  const Tensor output = Tensor::empty(hidden.shape(), DType::kF32);
  ThreadGroupOptions options;
  options.num_ranks = spread.num_ranks();
  options.ranks_per_node = spread.ranks_per_node;
  run_thread_ranks(options, [&](Group& group) {
    const int dp_rank = group.rank() / spread.tp;
    LoadOptions load;
    const ParallelConfig parallel = ParallelConfig::make(
        spread.tp, group.rank() % spread.tp, spread.dp, dp_rank, spread.use_ep, spread.backend);
    load.ep_size = parallel.ep_size;
    load.ep_rank = parallel.ep_rank;
    load.tp_size = parallel.tp_size;
    load.tp_rank = parallel.tp_rank;
    MoeLayerWeights weights = checkpoint.load_layer(layer, load);
    weights.config.parallel = parallel;
    weights.config.max_num_tokens = 8;  // several calls of a batched backend
    MoeLayerOptions layer_options;
    layer_options.monolithic = spread.monolithic;
    layer_options.low_latency_sum = spread.low_latency_sum;
    const Stream stream = Stream::cpu(1);
    MoeLayer moe(std::move(weights), layer_options, stream, &group);
    WorkspacePool workspaces;
    // Rows of the data-parallel ranks in order; the first ranks have one more.
    const ExpertRange rows = expert_range(hidden.dim(0), spread.dp, dp_rank);
    const Tensor own = Tensor::empty({rows.size(), hidden.dim(1)}, DType::kF32);
    for (int call = 0; call < 2; ++call) {  // the second finds the state of the first
      moe.forward(hidden.slice(rows.begin, rows.end), own, {stream, &workspaces, 0, nullptr});
    }
    if (group.rank() % spread.tp == 0 && own.nbytes() > 0) {
      std::memcpy(output.slice(rows.begin, rows.end).raw(), own.raw(),
                  static_cast<size_t>(own.nbytes()));
    }
  });
  return output;
}

// Activations quantized by what is on a rank: another rank count is another scale per tensor.
double tolerance_for(const Checkpoint& checkpoint) {
  return layer_tolerance(checkpoint.load_layer(0).experts.quant);
}

// Spreads that a fixture cannot have, and what says so.
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
  const std::string prefix = recorded_prefix(expected, 0);
  const Tensor hidden = expected.tensor(prefix + ".input");
  if (const auto reason = refusal(folder, spread)) {
    try {
      run_layer(checkpoint, 0, hidden, spread);
      ADD_FAILURE() << "not refused";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(*reason), std::string::npos) << error.what();
    }
    return;
  }
  Tensor output;
  try {
    output = run_layer(checkpoint, 0, hidden, spread);
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
  const Tensor alone = run_layer(checkpoint, 0, hidden, {"one rank"});
  for (int64_t t = 0; t < hidden.dim(0); ++t) {
    EXPECT_LE(relative_error(output[t], alone[t]), tolerance) << "row " << t;
  }
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
}  // namespace moebius
